"""The checks of files: whether they exist, and whether the model has positions for the longest sequence."""

import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from cw_plugin.files import is_remote
from cw_plugin.hosts.verl import LATEST
from cw_plugin.lab.configs import flat, listed
from cw_plugin.lab.doctor.finding import Finding

DATA = ("data.train_files", "data.val_files")
READ_BY_VERL = (".parquet", ".json", ".jsonl")
MODELS = [
    f"actor_rollout_ref.model.{name}" for name in ("path", "tokenizer_path", "hf_config_path", "lora_adapter_path")
]
WRITTEN = [f"trainer.{name}" for name in ("default_local_dir", "rollout_data_dir", "validation_data_dir")]
_LFS_POINTER = 200  # bytes: what git-lfs leaves in the place of a file is smaller, and weights are larger
# Where verl or another program expands a path, where it is not used, and where check_files itself looks for it.
_EXPANDED = ["*.model.*", "*.reward_model.*", "data.*_files", "data.cache_dir", "*skip.*", "*.env_vars"]


@dataclass(frozen=True)
class DataFile:
    """A local data file, and the setting that names it."""

    setting: str
    path: Path

    def __str__(self) -> str:
        return f"{self.setting}: {self.path}"

    def rows(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The rows, with those of these columns that there are; OSError or ValueError if it cannot be read."""
        if self.path.suffix == ".parquet":
            return list(pq.ParquetFile(self.path).read(columns).to_pylist())
        text = self.path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            return list(json.loads(text))
        return [json.loads(line) for line in text.split("\n") if line.strip()]


def is_empty(file: Path) -> bool:
    """Whether it is a parquet file without rows; False for one that cannot be read, of which other checks tell."""
    with suppress(OSError, ValueError):
        return file.suffix == ".parquet" and pq.read_metadata(file).num_rows == 0
    return False


def data_files(config: DictConfig) -> Iterator[DataFile]:
    """The local data files of a run, where verl reads patterns such as ``*.parquet``, too. It copies ``hdfs://``."""
    for setting in DATA:
        for path in listed(OmegaConf.select(config, setting)):
            if not is_remote(path):
                found = sorted(glob.glob(path)) if glob.has_magic(path) else []
                yield from (DataFile(setting, Path(file)) for file in found or [path])


def check_files(config: DictConfig) -> Iterator[Finding]:
    """Whether the files and folders exist that verl opens late: as it spells them, which expands no ``~``."""
    scored = ["reward.reward_model.model_path"] if OmegaConf.select(config, "reward.reward_model.enable") else []
    for setting in (*MODELS, *scored):
        model = OmegaConf.select(config, setting)
        if model and is_missing_folder(model):
            yield Finding(f"{setting}={model} does not exist", instead(model) or "give a folder, or a name on the hub")
        elif model and model.endswith("/"):
            yield Finding(f"{setting}={model} ends with /, which verl refuses", f"{setting}={model.rstrip('/')}")
    folder = Path(config.actor_rollout_ref.model.path)
    of_megatron = OmegaConf.select(config, "actor_rollout_ref.actor.megatron.use_dist_checkpointing")
    if folder.is_dir() and not of_megatron and not _has_weights(folder):
        problem = f"{MODELS[0]}={folder} has no weights (*.safetensors or *.bin), or lacks files that its index names"
        yield Finding(problem, "download the model again, or name another folder")
    yield from _check_data_files(config)
    template = config.actor_rollout_ref.model.custom_chat_template
    if template and "{" not in template:
        problem = f"custom_chat_template={template} is no template: verl would make this text of every prompt"
        yield Finding(problem, "give the text of the template in place of its file")
    yield from _check_folders_of_run(config)


def _check_data_files(config: DictConfig) -> Iterator[Finding]:
    for file in data_files(config):
        if not file.path.exists():
            fix = instead(str(file.path)) or f"cw-grpo prepare all, or {file.setting}=<an existing file>"
            yield Finding(f"{file} does not exist", fix)
    if not listed(OmegaConf.select(config, "data.val_files")):
        yield Finding("data.val_files names no file, without which verl does not start", "data.val_files=<a file>")


def _has_weights(model: Path) -> bool:
    """Whether a model's folder has files of weights, and all that its index names; those of git-lfs are no weights."""
    indices = [*model.glob("*.safetensors.index.json"), *model.glob("*.bin.index.json")]
    named = [name for index in indices for name in json.loads(index.read_bytes())["weight_map"].values()]
    files = [model / name for name in named] or [*model.glob("*.safetensors"), *model.glob("*.bin")]
    return bool(files) and all(file.is_file() and file.stat().st_size > _LFS_POINTER for file in files)


def _check_folders_of_run(config: DictConfig) -> Iterator[Finding]:
    resumed, mode = config.trainer.resume_from_path, config.trainer.resume_mode
    if resumed and mode == "auto":
        problem = f"trainer.resume_from_path={resumed} does nothing with resume_mode=auto"
        yield Finding(problem, "trainer.resume_mode=resume_path", fatal=False)
    elif mode == "resume_path" and not is_checkpoint(resumed):
        problem = f"trainer.resume_from_path={resumed} is no folder of a checkpoint"
        yield Finding(problem, instead(resumed or "") or "give an existing folder, whose name ends with global_step_N")
    checkpoint, gpus = checkpoint_of(config), config.trainer.n_gpus_per_node * config.trainer.nnodes
    saved = Path(checkpoint, "actor").glob("model_world_size_*_rank_0.pt") if checkpoint else []
    processes = {file.name.split("_")[3] for file in saved}
    if processes and str(gpus) not in processes:
        problem = f"{checkpoint} is a checkpoint of {', '.join(processes)} process(es), and this run has {gpus}"
        yield Finding(f"{problem}: verl's FSDP does not find its files", "as many GPUs, or trainer.resume_mode=disable")
    for setting, value in flat(config, ignored=_EXPANDED).items():
        fix = instead(value) if isinstance(value, str) else None
        if fix:
            yield Finding(f"{setting}={value}: verl would take this name as it stands", fix, fatal=False)
    for setting in WRITTEN:
        folder = OmegaConf.select(config, setting)
        is_used = setting != "trainer.default_local_dir" or config.trainer.save_freq > 0
        if folder and is_used and _is_blocked(folder):
            problem = f"{setting}={folder} is no folder that this process can write to; verl finds it out late"
            yield Finding(problem, "another folder; verl makes those that do not exist")


def _is_blocked(folder: str) -> bool:
    """Whether the folder, or what is nearest to it of what exists, is a file or cannot be written to."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    return not (place.is_dir() and os.access(place, os.W_OK))


def is_checkpoint(folder: str | None) -> bool:
    """Whether it is a folder of a step of verl's."""
    return folder is not None and re.search(r"global_step_\d+$", folder) is not None and Path(folder).is_dir()


def checkpoint_of(config: DictConfig) -> str:
    """The folder of the checkpoint that verl's trainers would resume; "" if there is none."""
    trainer, folder = config.trainer, ""
    latest = Path(trainer.default_local_dir, LATEST)
    if trainer.resume_mode == "auto" and latest.exists():
        folder = str(latest.with_name(f"global_step_{int(latest.read_text())}"))
    elif trainer.resume_mode == "resume_path":
        folder = trainer.resume_from_path
    return folder if is_checkpoint(folder) else ""


def instead(path: str) -> str | None:
    """What to write for a path that begins with ``~``, or has a variable of the shell; None for another one."""
    expanded = os.path.expandvars(os.path.expanduser(path))
    return f"write {expanded}; verl expands neither ~ nor $HOME" if expanded != path else None


def is_missing_folder(model: str) -> bool:
    """False for a name on the hub, which :func:`check_lengths` looks up."""
    path = Path(model)
    like_a_folder = model[0] in "/.~$" or model.count("/") > 1 or ("/" in model and path.parent.is_dir())
    return like_a_folder and not is_remote(model) and not path.exists()


def check_lengths(config: DictConfig) -> Iterator[Finding]:
    """Responses that vLLM would cut: the model's positions and max_model_len must hold prompt and response."""
    from transformers import AutoConfig
    from verl.utils.model import update_model_config

    model, limit = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout.max_model_len
    if is_missing_folder(model.path) or is_remote(model.path):
        return  # check_files says so; or verl has yet to copy it
    longest = config.data.max_prompt_length + config.data.max_response_length
    place = model.hf_config_path or model.path
    shape = AutoConfig.from_pretrained(place, trust_remote_code=model.trust_remote_code)
    changed = model.override_config.get("model_config", model.override_config)
    update_model_config(shape, OmegaConf.to_container(changed))
    of_text = getattr(shape.get_text_config(), "max_position_embeddings", longest)
    positions = getattr(shape, "max_position_embeddings", None) or of_text
    room = min(positions, limit or longest)
    if longest > room:
        problem = f"data.max_prompt_length + data.max_response_length = {longest}: vLLM cuts what is longer than {room}"
        yield Finding(problem, f"a sum of {room}; or a larger rollout.max_model_len, if the model has more positions")
    elif limit and limit > positions:
        yield Finding(f"rollout.max_model_len={limit}: the model has {positions} positions", "at most as many, or null")
