"""Reads graded answers: those of ``cw-grpo evaluate``, and those of verl's validations within a run.

    answers, notes = read_answers(folder)                 # or read_answers(folder, name="GRPO")

``answers`` has one :class:`Answers` for each model, step and benchmark, with the mean ``acc`` of each question and the
settings that it was asked with, for :func:`cw_plugin.settings.differences`. ``notes`` has a sentence for each file that
was passed over, and for each benchmark that is not finished.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cw_plugin.errors import DataError, first_line
from cw_plugin.files import find
from cw_plugin.settings import flat

BENCHMARKS = {  # in the paper's order, with the paper's names
    "aime24": "AIME24",
    "math500": "MATH-500",
    "amc23": "AMC23",
    "minerva": "Minerva",
    "olympiadbench": "OlympiadBench",
}

VALIDATION = "validation"  # the benchmark of a run's own validations: verl does not note which one a row is from

# Settings that follow from the machine, or from where files lie. Answers under other values of any other are not mixed.
MACHINE = (
    "trainer", "ray_kwargs", "transfer_queue", "global_profiler", "*.profiler", "hydra",
    "data.*_files", "data.*_batch_size", "*num_workers", "*mini_batch_size", "*micro_batch_size*",
    "*max_token_len_per_gpu", "*_offload", "*.fsdp_size", "*.use_torch_compile",
    *(f"actor_rollout_ref.rollout.{key}" for key in (
        "gpu_memory_utilization", "*_parallel_size", "max_num_*", "enforce_eager", "free_cache_engine",
        "checkpoint_engine", "prometheus", "trace", "nnodes", "n_gpus_per_node",
    )),
    "actor_rollout_ref.model.path", "*.reward_kwargs.model_path",  # evaluation.checkpoint and .weights say which model
    "evaluation.model", "evaluation.versions",
)  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """One model's answers to one benchmark.

    Attributes:
        model: the given name; else that of the run, or of the model's folder in the evaluation, without its step.
        step: of training; None for a model that is no checkpoint.
        benchmark: its name; VALIDATION for a run's own validation.
        accuracy: question -> mean of ``acc`` over its samples. Models that were asked the same file have the same
            questions here.
        samples: answers to each question (to that with the most, if they differ).
        settings: dotted key -> value. Those that the answers depend on: verl's, and ``evaluation.checkpoint``,
            ``.step``, ``.weights`` and ``.questions`` (hashes) and ``.samples``. Empty for a validation.
        file: where they are.
    """

    model: str
    step: int | None
    benchmark: str
    accuracy: dict[str, float]
    samples: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    file: Path = Path()


def read_answers(folder: Path, name: str | None = None) -> tuple[list[Answers], list[str]]:
    """All graded answers below a folder, and a sentence for each file that was passed over.

    Args:
        folder: of one model or of several, as ``cw-grpo evaluate`` writes it, or a run's.
        name: of the method or model. By default, each has its own.

    Raises:
        DataError: a file of answers is empty or damaged, or a file of settings is.
    """
    found: dict[tuple[Any, ...], Answers] = {}
    notes: list[str] = []
    for file in sorted(find(folder, "*.jsonl"), key=_age):
        if not file.is_file():
            notes.append(f"{file} is a folder, and is passed over.")
            continue
        asked = read_settings(file.with_suffix(".yaml"))
        if not asked and not (file.stem.isdecimal() and _is_validation(file, notes)):
            continue  # metrics, or rollouts
        step = asked.get("evaluation.step") if asked else int(file.stem)
        key = (file.parent, file.stem) if asked else (step,)
        if key in found:
            notes.append(f"{file} is passed over: step {step} was measured before, in {found[key].file}.")
            continue
        own = re.sub(r"-global_step_\d+$", "", file.parent.name) if asked else folder.resolve().name
        accuracy, samples = _accuracy(file)
        benchmark = file.stem if asked else VALIDATION
        found[key] = Answers(name or own, step, benchmark, accuracy, samples, flat(asked, MACHINE), file)
    for file in find(folder, "*.yaml"):
        if not file.with_suffix(".jsonl").exists() and read_settings(file):
            notes.append(f"{file.parent.name} is not finished on {file.stem}: evaluate it again to complete it.")
    order = list(BENCHMARKS)
    place = {benchmark: order.index(benchmark) for benchmark in order}
    return sorted(found.values(), key=lambda a: (a.model, a.step or -1, place.get(a.benchmark, 9), a.benchmark)), notes


def read_settings(file: Path) -> dict[str, Any]:
    """What a benchmark was asked with, as dotted keys; empty if there is no such file, or it is another program's.

    Raises:
        DataError: the file is damaged.
    """
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8", errors="replace")
    if not text.startswith("evaluation:"):
        return {}
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return flat(OmegaConf.create(text))
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise DataError(f"{file} is damaged ({first_line(error)}); remove it, and evaluate again") from None


def _age(file: Path) -> tuple[float, Path]:
    """Sorts older files first: a run that started anew has kept them in validation.0, validation.1, and so on."""
    number = file.parent.suffix[1:]
    return (int(number) if number.isdecimal() else math.inf), file


def _is_validation(file: Path, notes: list[str]) -> bool:
    """Whether it is a dump of a validation; those of rollouts have the same names, but no grades."""
    with file.open("rb") as lines:
        first = next(lines, b"")
    if not first:
        notes.append(f"{file} is empty, and is passed over.")
    return b'"acc"' in first


def _accuracy(file: Path) -> tuple[dict[str, float], int]:
    """Question -> mean of its answers' acc, and the number of answers to a question."""
    graded: dict[str, list[float]] = defaultdict(list)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                question = str(row["question"]) if "question" in row else f"{row['input']}\n{row['gts']}"
                acc = row["acc"]
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"{file}, line {number} is no graded answer (JSON with input, gts and acc); remove the file, or "
                    "evaluate again"
                ) from None
            if not isinstance(acc, (int, float)) or not math.isfinite(acc):
                raise DataError(f"{file}, line {number}: acc is {acc!r}, not a number; grade these answers again")
            graded[question].append(float(acc))
    if not graded:
        raise DataError(f"{file} is empty; remove it, and evaluate this benchmark again")
    means = {question: sum(several) / len(several) for question, several in graded.items()}
    return means, max(map(len, graded.values()))
