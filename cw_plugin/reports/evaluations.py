"""Reads graded answers, of an evaluation or of the validation in a run."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cw_plugin.errors import ReportError
from cw_plugin.files import find
from cw_plugin.reports.runs import split_name
from cw_plugin.reports.statistics import Seed

BENCHMARKS = {  # in the paper's order, with the paper's names
    "aime24": "AIME24",
    "math500": "MATH-500",
    "amc23": "AMC23",
    "minerva": "Minerva",
    "olympiadbench": "OlympiadBench",
}

VALIDATION = "validation"


@dataclass(frozen=True)
class Evaluation:
    """One model's answers.

    Attributes:
        name: of the method or model.
        step: training step of the checkpoint, None for a model that was not trained here.
        accuracy: benchmark -> question -> accuracy of each of its answers, 0 or 1.
        unfinished: benchmarks that still lack answers.
        settings: the content of settings.json.
        seed: of the training run, where it is known.
        of_runs: the evaluations that were put together, where there are several seeds.
    """

    name: str
    step: int | None
    accuracy: dict[str, dict[str, list[float]]]
    unfinished: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    seed: Seed = None
    of_runs: tuple[Evaluation, ...] = ()

    @property
    def is_validation(self) -> bool:
        """Whether these are answers of verl's validation within a run."""
        return VALIDATION in self.accuracy


def read_evaluations(argument: str | Path) -> list[Evaluation]:
    """Read ``FOLDER`` or ``NAME=FOLDER``, which ``cw-grpo evaluate`` wrote for one model or several.

    A folder that holds only verl's own validation dumps (``validation/<step>.jsonl``) gives one evaluation for each
    step. verl does not record which benchmark a row belongs to, so all rows form one benchmark, "validation".

    Raises:
        ReportError: there are no answers, or a file is damaged.
    """
    name, path = split_name(argument)
    if not path.is_dir():
        raise ReportError(f"{path} is not a folder; give one that cw-grpo evaluate or a run has written")
    folders = evaluation_folders(path)
    if folders:
        several = len(folders) > 1 and name == split_name(path)[0]
        return [_evaluation(folder, folder.name if several else name) for folder in folders]
    dumps = validation_dumps(path)
    if not dumps:
        raise ReportError(
            f"{path} holds no graded answers: neither an evaluation (settings.json) nor verl's validation dumps "
            "(STEP.jsonl); run cw-grpo evaluate, or train with trainer.validation_data_dir"
        )
    return [
        Evaluation(name, int(file.stem), {VALIDATION: _by_question(_rows(file), ("input", "gts"), file)})
        for file in dumps
    ]


def evaluation_folders(path: Path) -> list[Path]:
    """Folders that ``cw-grpo evaluate`` wrote; a ``settings.json`` of another program is ignored.

    Raises:
        ReportError: one of them is damaged.
    """
    return [file.parent for file in find(path, "settings.json") if _settings(file) is not None]


def _settings(file: Path) -> dict[str, Any] | None:
    text = file.read_text(encoding="utf-8", errors="replace")
    try:
        settings = json.loads(text)
    except ValueError as error:
        if '"benchmarks"' not in text:
            return None
        raise ReportError(f"{file} is damaged ({error}); evaluate again") from None
    return settings if isinstance(settings, dict) and "benchmarks" in settings else None


def validation_dumps(path: Path) -> list[Path]:
    """verl's validation dumps by step. Its rollout dumps have the same file names, but no grades."""
    steps = [file for file in find(path, "*.jsonl") if file.stem.isdigit()]
    dumps = []
    for file in steps:
        with open(file, encoding="utf-8", errors="replace") as lines:
            if '"acc"' in next(lines, ""):
                dumps.append(file)
    return sorted(dumps, key=lambda file: int(file.stem))


def _evaluation(folder: Path, name: str) -> Evaluation:
    settings = _settings(folder / "settings.json") or {}
    try:
        benchmarks = {key: bool(value["finished"]) for key, value in settings["benchmarks"].items()}
        step = settings["step"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{folder}/settings.json is damaged ({error!r}); evaluate again") from None
    files = [folder / f"{key}.jsonl" for key in benchmarks]
    accuracy = {
        file.stem: _by_question(
            ({"ground_truth": row.get("gold", "")} | row for row in _rows(file)),  # gold: written by version 0.1
            ("index", "ground_truth"),
            file,
        )
        for file in files
        if file.exists()
    }
    unfinished = tuple(key for key, finished in benchmarks.items() if not finished or key not in accuracy)
    return Evaluation(re.sub(r"-global_step_\d+$", "", name), step, accuracy, unfinished, settings)


def _rows(file: Path) -> Iterable[dict[str, Any]]:
    # Not splitlines: it also ends a line at U+2028 and its like, which JSON leaves as they are.
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except ValueError:
            raise ReportError(f"{file}, line {number} is not JSON; evaluate this benchmark again") from None


def _by_question(rows: Iterable[dict[str, Any]], keys: tuple[str, ...], file: Path) -> dict[str, list[float]]:
    answers: dict[str, list[float]] = defaultdict(list)
    try:
        for row in rows:
            answers["\n".join(str(row[key]) for key in keys)].append(float(row["acc"]))
    except (KeyError, TypeError) as error:
        raise ReportError(f"{file} has rows without {error}, so it holds no graded answers; remove it") from None
    if not answers:
        raise ReportError(f"{file} is empty; evaluate this benchmark again, or remove the file")
    return dict(answers)
