"""Reads the graded answers of ``cw-grpo evaluate``."""

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cw_plugin.lab.configs import flat, read_yaml
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.result_files import files_in

# Settings that follow from the machine, or from where files lie. Answers under other values of any other are not mixed.
MACHINE = (
    "trainer", "ray_kwargs", "transfer_queue", "global_profiler", "*.profiler", "hydra",
    "data.*_files", "data.*_batch_size", "*num_workers", "*mini_batch_size", "*micro_batch_size*",
    "*max_token_len_per_gpu", "*_offload", "*.fsdp_size", "*.use_torch_compile",
    "actor_rollout_ref.rollout.gpu_memory_utilization", "actor_rollout_ref.rollout.*_parallel_size",
    "actor_rollout_ref.rollout.max_num_*", "actor_rollout_ref.rollout.enforce_eager",
    "actor_rollout_ref.rollout.free_cache_engine", "actor_rollout_ref.rollout.checkpoint_engine",
    "actor_rollout_ref.rollout.prometheus", "actor_rollout_ref.rollout.trace",
    "actor_rollout_ref.rollout.nnodes", "actor_rollout_ref.rollout.n_gpus_per_node",
    "actor_rollout_ref.rollout.*.distributed_executor_backend",
    "actor_rollout_ref.model.path", "*.reward_kwargs.model_path",  # evaluation.checkpoint and .weights say which model
)  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """One model's answers to one benchmark.

    The settings are verl's, and ``evaluation.checkpoint``, ``.step``, ``.weights`` and ``.questions`` (hashes) and
    ``.samples``; without those of the machine.
    """

    model: str  # the name that a user chose; else that of the model's folder in the evaluation, without its step
    step: int | None  # of training; None if it is not known, as for the model that training began with
    benchmark: str
    grades: dict[str, list[float]]  # question -> acc of each of its answers
    settings: dict[str, object] = field(default_factory=dict)  # dotted key -> value
    file: Path = Path()  # where they are
    run: Path | None = None  # the folder of the training run that the model is of; None if it is not known
    seed: object = math.nan  # of that run, nan if it is not known
    ground_truths: dict[str, str | None] = field(default_factory=dict)  # of each question; None if the data has none


def read_answers(folder: Path) -> tuple[list[Answers], list[str]]:
    """Read all graded answers below a folder that ``cw-grpo evaluate`` wrote.

    A file that is empty or damaged is a DataError.

    Returns:
        The answers, and a sentence for each benchmark that is not finished.
    """
    answers, notes = [], []
    for file in files_in(folder, "*.yaml"):
        settings, dump = read_asked_with(file), file.with_suffix(".jsonl")
        if not settings:
            continue
        if not dump.is_file():
            notes.append(f"{file.parent.name} is not finished on {file.stem}: evaluate it again to complete it.")
            continue
        model, step = re.sub(r"-global_step_\d+$", "", file.parent.name), settings.get("evaluation.step")
        grades, ground_truths = read_grades(dump)
        settings_of = flat(settings, MACHINE)
        answers.append(Answers(model, step, file.stem, grades, settings_of, dump, ground_truths=ground_truths))
    answers.sort(key=lambda asked: (asked.model, -1 if asked.step is None else asked.step, asked.benchmark))
    return answers, notes


def read_asked_with(file: Path) -> dict[str, Any]:
    """Read what a benchmark was asked with, by dotted keys; empty without the file, or if it is another program's."""
    text = file.read_text(encoding="utf-8-sig", errors="replace") if file.is_file() else ""
    return read_yaml(file) if text.startswith("evaluation:") else {}


def read_grades(file: Path) -> tuple[dict[str, list[float]], dict[str, str | None]]:
    """Read acc of each answer, and the ground truth, by question; a file that is empty or damaged is a DataError."""
    grades: dict[str, list[float]] = defaultdict(list)
    ground_truths = {}
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                question, ground_truth, acc = _graded_answer(line, f"{file}, line {number}")
                grades[question].append(acc)
                ground_truths[question] = ground_truth
    if not grades:
        raise DataError(f"{file} is empty; remove it, and evaluate this benchmark again")
    return dict(grades), ground_truths


def _graded_answer(line: bytes, place: str) -> tuple[str, str | None, float]:
    """The question, its ground truth (None if the data has none), and acc of an answer to it."""
    try:
        row = json.loads(line)
        ground_truth, acc = None if row["gts"] is None else str(row["gts"]), row["acc"]
        question = f"{row['input']}\n{ground_truth}"
        is_graded = 0 <= acc <= 1
    except (ValueError, KeyError, TypeError):
        is_graded = False
    if not is_graded:
        raise DataError(
            f"{place} is no answer in JSON with input, gts and acc, a number from 0 to 1; remove the file, and ask "
            "again with a reward that returns acc"
        )
    return question, ground_truth, float(acc)
