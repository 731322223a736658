"""Reads the graded answers of ``cw-grpo evaluate``: ``answers, notes = read_answers(folder)``."""

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cw_plugin.configs import flat, read_yaml
from cw_plugin.errors import DataError
from cw_plugin.files import files_in

# Settings that follow from the machine, or from where files lie. Answers under other values of any other are not mixed.
MACHINE = (
    "trainer", "ray_kwargs", "transfer_queue", "global_profiler", "*.profiler", "hydra",
    "data.*_files", "data.*_batch_size", "*num_workers", "*mini_batch_size", "*micro_batch_size*",
    "*max_token_len_per_gpu", "*_offload", "*.fsdp_size", "*.use_torch_compile",
    *(f"actor_rollout_ref.rollout.{key}" for key in (
        "gpu_memory_utilization", "*_parallel_size", "max_num_*", "enforce_eager", "free_cache_engine",
        "checkpoint_engine", "prometheus", "trace", "nnodes", "n_gpus_per_node", "*.distributed_executor_backend",
    )),
    "actor_rollout_ref.model.path", "*.reward_kwargs.model_path",  # evaluation.checkpoint and .weights say which model
)  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """One model's answers to one benchmark.

    Attributes:
        model: the given name; else that of the model's folder in the evaluation, without its step.
        step: of training; None for a model that is no checkpoint.
        grades: question -> ``acc`` of each of its answers.
        settings: dotted key -> value: verl's, and ``evaluation.checkpoint``, ``.step``, ``.weights`` and ``.questions``
            (hashes) and ``.samples``; without those of the machine.
        file: where they are; seed: of the run that it is a checkpoint of, nan if that is not known.
    """

    model: str
    step: int | None
    benchmark: str
    grades: dict[str, list[float]]
    settings: dict[str, Any] = field(default_factory=dict)
    file: Path = Path()
    seed: Any = math.nan


def read_answers(folder: Path, name: str | None = None) -> tuple[list[Answers], list[str]]:
    """All graded answers below a folder that ``cw-grpo evaluate`` wrote, and a sentence for each benchmark that is not
    finished. Without ``name``, each model has its own. A file that is empty or damaged is a DataError."""
    found, notes = [], []
    for file in files_in(folder, "*.yaml"):
        asked, graded = read_settings(file), file.with_suffix(".jsonl")
        if asked and not graded.is_file():
            notes.append(f"{file.parent.name} is not finished on {file.stem}: evaluate it again to complete it.")
        elif asked:
            own = re.sub(r"-global_step_\d+$", "", file.parent.name)
            step, settings = asked.get("evaluation.step"), flat(asked, MACHINE)
            found.append(Answers(name or own, step, file.stem, _grades(graded), settings, graded))
    return sorted(found, key=lambda each: (each.model, each.step or -1, each.benchmark)), notes


def read_settings(file: Path) -> dict[str, Any]:
    """What a benchmark was asked with, by dotted keys; empty if there is no such file, or it is another program's."""
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    return read_yaml(file) if text.startswith("evaluation:") else {}


def _grades(file: Path) -> dict[str, list[float]]:
    """Question -> acc of each of its answers."""
    graded: dict[str, list[float]] = defaultdict(list)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                question, acc = f"{row['input']}\n{row['gts']}", row["acc"]
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{file}, line {number} is no graded answer (JSON with input, gts and acc); remove the "
                                "file, or evaluate again") from None  # fmt: skip
            if not isinstance(acc, (int, float)) or not math.isfinite(acc):
                raise DataError(f"{file}, line {number}: acc is {acc!r}, not a number; grade these answers again")
            graded[question].append(float(acc))
    if not graded:
        raise DataError(f"{file} is empty; remove it, and evaluate this benchmark again")
    return dict(graded)
