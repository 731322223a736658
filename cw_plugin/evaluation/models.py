"""The models to evaluate: Hugging Face models, and verl's checkpoints, which verl's merger converts."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cw_plugin.errors import DataError, OptionsError, first_line
from cw_plugin.files import expanded

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.distcp")
_STEP = re.compile(r"global_step_(\d+)")
_NAMED = re.compile(r"([\w.-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class Model:
    """A folder or a name on the hub, the name of its folder of answers, and the step of a checkpoint."""

    place: Path | str
    name: str
    step: int | None = None


def find_models(arguments: Sequence[str], say: Callable[[str], None]) -> list[Model]:
    """The models that the arguments name. A run's folder stands for all of its checkpoints, by step.

    Args:
        arguments: ``PLACE`` or ``NAME=PLACE``; a Hugging Face name or folder, a ``global_step_*`` folder, or a run's.
        say: called with a sentence about each checkpoint that is left out.

    Raises:
        OptionsError: no model is given, a folder does not exist, or two models have one name.
        DataError: a folder holds no model.
    """
    models: dict[str, Model] = {}
    for argument in arguments:
        named = _NAMED.fullmatch(argument) if not expanded(argument).exists() else None
        name, place = (named[1], named[2]) if named else ("", argument)
        if expanded(place).exists():
            found = _in_folder(expanded(place).resolve(), name, say)
        elif place.startswith(("/", ".", "~")) or place.count("/") > 1 or not place:
            raise OptionsError(f"The model {place!r} does not exist; give a folder, or a name on the hub.")
        else:
            found = [Model(place, name or place.rpartition("/")[2])]
        for model in found:
            if (other := models.setdefault(model.name, model)).place != model.place:
                raise OptionsError(f"{other.place} and {model.place} are both {model.name}; name one, as NAME=FOLDER.")
    if not models:
        raise OptionsError("No model is given; name Hugging Face models or verl's checkpoints.")
    return list(models.values())


def _in_folder(path: Path, name: str, say: Callable[[str], None]) -> list[Model]:
    if (path / "config.json").is_file():
        return [Model(path, name or path.name)]
    path = path.parent if path.name == "actor" else path
    steps = (
        [path] if _STEP.fullmatch(path.name) else [*path.glob("global_step_*"), *path.glob("checkpoints/global_step_*")]
    )
    numbers = {step: int(match[1]) for step in steps if (match := _STEP.fullmatch(step.name))}
    found = []
    for step in sorted(numbers, key=lambda step: numbers[step]):
        tracker = step.parent / "latest_checkpointed_iteration.txt"  # verl writes it when a checkpoint is complete
        latest = tracker.read_text().strip() if tracker.is_file() else ""
        if (step / "actor").is_dir() and not (latest.isdecimal() and numbers[step] > int(latest)):
            run = step.parent.parent if step.parent.name == "checkpoints" else step.parent
            found.append(Model(step, f"{name or run.name}-{step.name}", numbers[step]))
        else:
            say(f"{step} is left out: verl deleted it, or has not finished it.")
    if not found:
        raise DataError(f"{path} holds no model (config.json), and no whole checkpoint (global_step_*/actor).")
    return found


def fingerprint(place: Path | str, patterns: Sequence[str] = WEIGHTS, trust_remote_code: bool = False) -> str:
    """A hash of a file, or of the names, sizes and times of files in a folder; the commit of a model on the hub.

    Raises:
        DataError: the folder has no such files, or the hub no such model.
    """
    if isinstance(place, str):
        from transformers import AutoConfig

        try:
            return str(AutoConfig.from_pretrained(place, trust_remote_code=trust_remote_code)._commit_hash)
        except (OSError, ValueError) as error:
            raise DataError(f"{place} is no folder, and no model on the hub ({first_line(error)}).") from None
    if place.is_file():
        return hashlib.sha256(place.read_bytes()).hexdigest()
    files = [file for pattern in patterns for file in sorted(place.rglob(pattern)) if file.is_file()]
    names = {file: str(file.relative_to(place)) for file in files}
    weights = [file for file in files if not re.search(r"(^|/)(optim|extra)", names[file])]
    if not weights:
        raise DataError(f"{place} has no weights; give a folder with a whole model or checkpoint.")
    stats = [(names[file], file.stat().st_size, file.stat().st_mtime_ns) for file in weights]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def merged(model: Model, weights: str, cache: Path, say: Callable[[str], None]) -> str:
    """The Hugging Face name or folder of a model; a checkpoint is merged into ``cache`` the first time.

    Args:
        weights: the fingerprint of a checkpoint's weights.

    Raises:
        DataError: verl's merger fails, or leaves a LoRA adapter. No incomplete model stays in ``cache``.
    """
    if model.step is None:
        return str(model.place)
    actor = Path(model.place) / "actor"
    for saved in (actor / "huggingface", actor / "model" / "huggingface"):
        if any(saved.glob("*.safetensors")):  # Megatron's bridges save it like this, FSDP when it is asked to
            return str(saved)
    target = cache / f"{model.name}-{weights[:12]}"
    if target.is_dir():
        return str(target)
    megatron = (actor / "model").is_dir()
    config = (actor / "model" if megatron else actor) / "huggingface" / "config.json"
    if not config.is_file():  # with actor.megatron.use_dist_checkpointing verl leaves the folder empty
        raise DataError(
            f"{config} is missing; copy config and tokenizer of the model that was trained there, no weights."
        )
    merge = ["-m", "verl.model_merger", "merge", "--local_dir", str(actor), "--backend"]
    command = [sys.executable, *merge, "fsdp"]
    if megatron:
        # A process group of its own: with the variables of a job, the merger would wait for the job's other processes.
        alone = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*alone, *merge, "megatron", "--use_cpu_initialization"]
        if json.loads(config.read_text(encoding="utf-8")).get("tie_word_embeddings"):
            command.append("--tie-word-embedding")
    part, log = target.with_name(f".{target.name}.part"), target.with_name(f"{target.name}.log")
    shutil.rmtree(part, ignore_errors=True)  # left by an interrupted merge
    cache.mkdir(parents=True, exist_ok=True)
    say(f"{model.name}: merging the checkpoint into {target}")
    with log.open("wb") as output:
        code = subprocess.run([*command, "--target_dir", str(part)], stdout=output, stderr=subprocess.STDOUT).returncode
    if code == 0 and not (part / "lora_adapter").is_dir():
        return str(part.replace(target))
    shutil.rmtree(part, ignore_errors=True)
    if code == 0:  # the merger put the adapter beside the base model
        raise DataError(f"{actor} has a LoRA adapter; merge it with peft's merge_and_unload, and give that folder.")
    raise DataError(f"verl's merger could not merge {actor}; its output: {log}")
