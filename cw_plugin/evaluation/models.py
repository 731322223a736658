"""The models to evaluate: Hugging Face models, and verl's checkpoints, which verl's merger converts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cw_plugin.errors import EvaluationError, first_line
from cw_plugin.files import expanded

STEP = "global_step_"
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.distcp")


@dataclass(frozen=True)
class Model:
    """One model to evaluate.

    Attributes:
        name: the folder of its answers.
        checkpoint: the argument: an absolute path, or a name on the hub.
        path: a Hugging Face folder or name; None if ``checkpoint`` must be merged first.
        step: the training step of a checkpoint.
        weights: identifies the weights: the hub's commit, or a hash of the files' names, sizes and times.
    """

    name: str
    checkpoint: str
    path: str | None
    step: int | None
    weights: str


def find_models(
    arguments: Sequence[str], out: Path, say: Callable[[str], None], trust_remote_code: bool = False
) -> list[Model]:
    """The models that the arguments name. A folder of checkpoints stands for all of them, ordered by step.

    Args:
        arguments: Hugging Face names or folders, ``global_step_*`` folders, their ``actor`` folders, folders of these.
        out: the folder of the answers; a name that another model has there is not used again.
        say: called with a message about each checkpoint that is left out.
        trust_remote_code: whether a model on the hub may bring code of its own.

    Raises:
        EvaluationError: there is no argument, or one that does not name a model.
    """
    places: list[str | Path] = []
    for argument in arguments:
        path = expanded(argument)
        if path.exists():
            places += _expand(path.resolve(), say)
        elif argument.startswith(("/", ".", "~")) or argument.count("/") > 1 or not argument:
            raise EvaluationError(f"The model {argument!r} does not exist; give a folder, or a name on the hub.")
        else:
            places.append(argument)
    places = list(dict.fromkeys(places))
    if not places:
        raise EvaluationError("No model is given; name Hugging Face models or verl's checkpoints.")
    names = _names(places, out)
    models = {name: _model(place, name, trust_remote_code) for place, name in zip(places, names, strict=True)}
    return list(models.values())


def _expand(path: Path, say: Callable[[str], None]) -> list[Path]:
    if (path / "config.json").is_file():
        return [path]
    if path.name == "actor" and path.parent.name.startswith(STEP):
        path = path.parent
    if path.name.startswith(STEP):
        if not (path / "actor").is_dir():
            raise EvaluationError(
                f"{path} has no folder actor: verl deleted this checkpoint, or never finished it. Give another one."
            )
        return [path]
    steps = sorted((step for step in path.glob(f"{STEP}*") if step.is_dir()), key=_step)
    if not steps:
        raise EvaluationError(
            f"{path} has neither a config.json nor global_step_* folders; give a model or checkpoint."
        )
    tracker = path / "latest_checkpointed_iteration.txt"  # verl writes it when a checkpoint is complete
    latest = int(tracker.read_text()) if tracker.exists() else _step(steps[-1])
    whole = [step for step in steps if (step / "actor").is_dir() and _step(step) <= latest]
    for step in steps:
        if step not in whole:
            say(f"{step} is left out: verl deleted it, or never finished it")
    if not whole:
        raise EvaluationError(
            f"No checkpoint in {path} has a folder actor: verl has deleted them. Give another folder."
        )
    return whole


def _step(path: Path) -> int:
    number = path.name.removeprefix(STEP)
    if not number.isdigit():
        raise EvaluationError(f"{path} is not a checkpoint of verl: its name must end with the number of the step.")
    return int(number)


def _names(places: list[str | Path], out: Path) -> list[str]:
    """A name for each: the one that it has in ``out``, or a new one, with a hash of the folder if another one has it.

    Names of checkpoints of one run differ in the step alone.
    """
    known: dict[str, str] = {}  # checkpoint -> name
    for file in sorted(out.glob("*/settings.json")):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # another program's file
            known[json.loads(file.read_text(encoding="utf-8"))["checkpoint"]] = file.parent.name
    owners: dict[str, str] = {}  # name, without the number of a step -> folder
    for checkpoint, name in known.items():
        owners[re.sub(rf"-{STEP}\d+$", f"-{STEP}", name)] = _folder(checkpoint)
    names = []
    for place in map(str, places):
        folder, step = _folder(place), place.rpartition(STEP)[2] if place != _folder(place) else ""
        if place not in known:
            base, end = folder.removesuffix("/checkpoints").rpartition("/")[2], f"-{STEP}" if step else ""
            other = f"{base}-{hashlib.sha256(folder.encode()).hexdigest()[:6]}"
            name = next(each for each in (base + end, other + end) if owners.get(each, folder) == folder)
            owners[name] = folder
            known[place] = name + step
        names.append(known[place])
    return names


def _folder(place: str) -> str:
    """What checkpoints of one run have in common; a model is alone in its folder."""
    parent, _, last = place.rpartition("/")
    return parent if last.startswith(STEP) else place


def _model(place: str | Path, name: str, trust_remote_code: bool) -> Model:
    if isinstance(place, str):
        return Model(name, place, place, None, _commit(place, trust_remote_code))
    if not place.name.startswith(STEP):
        return Model(name, str(place), str(place), None, _fingerprint(place))
    for folder in (place / "actor" / "huggingface", place / "actor" / "model" / "huggingface"):
        if any(folder.glob("*.safetensors")):  # Megatron's bridges save it like this, FSDP when it is asked to
            return Model(name, str(place), str(folder), _step(place), _fingerprint(folder))
    return Model(name, str(place), None, _step(place), _fingerprint(place / "actor"))


def _commit(name: str, trust_remote_code: bool) -> str:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise EvaluationError(
            f"The model {name} is not a folder, and cannot be read from the hub ({first_line(error)}); check the name."
        ) from error
    return str(config._commit_hash)


def _fingerprint(folder: Path) -> str:
    files = sorted(
        file for pattern in WEIGHTS for file in folder.rglob(pattern) if not file.name.startswith(("optim", "extra"))
    )
    files = [file for file in files if not {"optimizer", "extra"} & set(file.relative_to(folder).parts)]
    if not files:
        raise EvaluationError(f"{folder} has no weights; give a folder with a whole model or checkpoint.")
    stats = [(str(file.relative_to(folder)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def merged(model: Model, cache: Path, say: Callable[[str], None]) -> str:
    """The Hugging Face folder of a model; a checkpoint is merged into ``cache`` the first time.

    Raises:
        EvaluationError: verl's merger fails, or leaves a LoRA adapter. No incomplete model stays in ``cache``.
    """
    if model.path is not None:
        return model.path
    actor = Path(model.checkpoint) / "actor"
    target = cache / f"{model.name}-{model.weights[:12]}"
    if target.is_dir():
        return str(target)
    megatron = (actor / "model").is_dir()
    config = actor / "model" / "huggingface" if megatron else actor / "huggingface"
    if not (config / "config.json").is_file():
        fix = (  # with actor.megatron.use_dist_checkpointing verl leaves this folder empty
            "copy the config and the tokenizer of the model that was trained to it, and no weights"
            if megatron
            else "the checkpoint is incomplete, give another one"
        )
        raise EvaluationError(f"{config} has no config.json, which verl's merger needs; {fix}.")
    merge = ["-m", "verl.model_merger", "merge", "--local_dir", str(actor)]
    command = [sys.executable, *merge, "--backend", "fsdp"]
    if megatron:
        # A process group of its own: with the variables of a job, the merger would wait for the job's other processes.
        alone = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*alone, *merge, "--backend", "megatron", "--use_cpu_initialization"]
        if json.loads((config / "config.json").read_text(encoding="utf-8")).get("tie_word_embeddings"):
            command.append("--tie-word-embedding")
    part, log = (target.with_name(target.name + suffix) for suffix in (".part", ".log"))
    shutil.rmtree(part, ignore_errors=True)  # left by an interrupted merge
    cache.mkdir(parents=True, exist_ok=True)
    say(f"{model.name}: merging the checkpoint into {target}")
    with log.open("wb") as output:
        result = subprocess.run([*command, "--target_dir", str(part)], stdout=output, stderr=subprocess.STDOUT)
    if result.returncode != 0:
        shutil.rmtree(part, ignore_errors=True)
        raise EvaluationError(f"verl's merger could not merge {actor}; its output: {log}")
    if (part / "lora_adapter").is_dir():  # the merger put it beside the base model, without merging it
        shutil.rmtree(part)
        raise EvaluationError(
            f"{actor} holds a LoRA adapter, which verl's merger does not merge into the base model; merge the two with "
            "peft's merge_and_unload, and give the folder of the merged model."
        )
    part.replace(target)
    return str(target)
