"""The models that ``cw-grpo evaluate`` asks: which ones its arguments name, and checkpoints of verl as such models."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cw_plugin.lab.arguments import split_name
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.evaluation.module_process import run_module


class Model(NamedTuple):
    """A model that is asked."""

    name: str  # of its folder of answers
    place: Path | str  # its folder, or its name on the Hugging Face hub
    step: int | None = None  # of a checkpoint of verl

    @property
    def weights(self) -> Path:
        """What :func:`fingerprint` takes for the model's weights."""
        return Path(self.place) if self.step is None else Path(self.place, "actor")


def find_models(arguments: Sequence[str]) -> list[Model]:
    """The models that ``PLACE`` or ``NAME=PLACE`` name.

    A place is a Hugging Face name or folder, a ``global_step_*`` folder, or a run's folder. A run stands for all of its
    checkpoints, by step. A folder that holds no model is a DataError.
    """
    models = []
    for argument in arguments:
        name, place = split_name(argument)
        path = place.resolve()
        if not os.path.isdir(path):
            models.append(Model(name or path.name, str(place)))
        elif (path / "config.json").is_file():
            models.append(Model(name or path.name, path))
        else:
            models += _checkpoints(path, name)
    return models


def _checkpoints(path: Path, name: str | None) -> list[Model]:
    checkpoints = []
    for folder in (path, *path.glob("global_step_*"), *path.glob("checkpoints/global_step_*")):
        step = folder.name.removeprefix("global_step_")
        if step.isdecimal() and (folder / "actor").is_dir():  # verl keeps the folder of a deleted checkpoint
            run = folder.parent.parent if folder.parent.name == "checkpoints" else folder.parent
            checkpoints.append(Model(f"{name or run.name}-{folder.name}", folder, int(step)))
    if not checkpoints:
        raise DataError(f"{path} holds no model (config.json), and no checkpoint (global_step_*/actor); name another")
    return sorted(checkpoints, key=lambda model: model.step or 0)


def merged(model: Model, cache: Path) -> str:
    """The Hugging Face name or folder of a model; verl's merger writes that of a checkpoint to ``cache`` once.

    A checkpoint that lacks the model's configuration, or has a LoRA adapter, is a DataError.
    """
    if model.step is None:
        return str(model.place)
    actor = model.weights
    for saved in (actor / "huggingface", actor / "model" / "huggingface"):
        if any(saved.glob("*.safetensors")):  # Megatron's bridges save it like this, FSDP when it is asked to
            return str(saved)
    target = cache / f"{model.name}-{fingerprint(actor)[:12]}"
    if target.is_dir():
        return str(target)
    part = cache / f".{target.name}.part"
    shutil.rmtree(part, ignore_errors=True)  # left by an interrupted merge
    cache.mkdir(parents=True, exist_ok=True)
    run_module(*_merger(actor), "--target_dir", str(part), log=cache / f"{target.name}.log")
    if (part / "lora_adapter").is_dir():  # beside the base model, whose answers would be taken for the adapter's
        raise DataError(f"{actor} has a LoRA adapter; merge it with peft's merge_and_unload, and give that folder")
    return str(part.replace(target))


def _merger(actor: Path) -> list[str]:
    """The module that merges a checkpoint, with its arguments."""
    merger = ["verl.model_merger", "merge", "--local_dir", str(actor)]
    if not (actor / "model").is_dir():
        return [*merger, "--backend", "fsdp"]
    config = actor / "model" / "huggingface" / "config.json"
    if not config.is_file():  # with actor.megatron.use_dist_checkpointing verl leaves the folder empty
        raise DataError(f"{config} is missing; copy config and tokenizer of the trained model there, no weights")
    # A process group of its own: with the variables of a job, the merger would wait for the job's other processes.
    alone = ["torch.distributed.run", "--standalone", "-m"]
    tied = json.loads(config.read_text("utf-8")).get("tie_word_embeddings")
    options = ["--use_cpu_initialization", *(["--tie-word-embedding"] if tied else [])]
    return [*alone, *merger, "--backend", "megatron", *options]


def fingerprint(place: Path) -> str:
    """A hash of the names, sizes and times of a folder's files, except optimizer states."""
    stats = []
    for file in sorted(path for path in place.rglob("*") if path.is_file()):
        name = str(file.relative_to(place))
        stat = file.stat()
        if not re.search(r"(^|/)(optim|extra)", name):
            stats.append((name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()
