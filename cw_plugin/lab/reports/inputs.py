"""Reads the folders that ``cw-grpo report`` compares: their runs, graded answers and token records."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.evaluation.graded_answers import Answers, read_answers
from cw_plugin.lab.reports.read_records import PATTERN, TokenRecord, read_tokens
from cw_plugin.lab.reports.runs import SEED_OR_LENGTH, Run, differing, read_run
from cw_plugin.lab.result_files import files_in


@dataclass(frozen=True)
class Inputs:
    """What all folders hold, in their order."""

    runs: list[Run]  # those that have metrics
    answers: list[Answers]  # of evaluations; those of a run's checkpoints have its name and seed
    recorded: dict[str, list[list[TokenRecord]]]  # method -> the token records of each of its runs that has some
    notes: list[str]  # a sentence for each evaluation that is not finished


def read_inputs(arguments: Sequence[str]) -> Inputs:
    """Read each ``FOLDER`` or ``NAME=FOLDER``.

    A folder that is given twice, has neither metrics nor graded answers, or is damaged is a DataError.
    """
    runs = _told_apart([read_run(argument) for argument in arguments])
    answers: list[Answers] = []
    recorded: dict[str, list[list[TokenRecord]]] = {}
    notes: list[str] = []
    for run in runs:
        graded, unfinished = read_answers(run.path)
        if run.metrics.empty and not (graded or unfinished):
            raise DataError(
                f"{run.path} holds no metrics (*.jsonl of verl's file logger, trainer_state.json of TRL, TensorBoard "
                "events, run-*.wandb) and no graded answers; train with trainer.logger=[console,file] in verl, call "
                "trainer.save_state() after training in TRL (cw-grpo tokens shows token records alone)"
            )
        answers += _under_name(run, graded)
        notes += unfinished
        if files_in(run.path, PATTERN):
            recorded.setdefault(run.name, []).append(read_tokens(run.path))
    with_metrics = [run for run in runs if not run.metrics.empty]
    if not with_metrics and not answers:
        raise DataError(f"nothing can be compared. {' '.join(notes)}")
    return Inputs(with_metrics, _assigned(answers, runs), recorded, notes)


def _told_apart(runs: Sequence[Run]) -> list[Run]:
    """Give each run that a user has not named the name of an earlier one of which it is a seed, or a name of its own.

    A run without settings is no seed of another: nothing shows that both have the same method.
    """
    named: list[Run] = []
    for run in runs:
        if run.path.resolve() in [other.path.resolve() for other in named]:
            raise DataError(f"{run.path} is given twice; give the folder of each run once")
        namesakes = [new for old, new in zip(runs, named, strict=False) if old.name == run.name]
        seeds = [other.name for other in namesakes if _is_seed(run, other)]
        other_name = seeds[0] if seeds else f"{run.name}, {run.path}"
        named.append(run if run.is_named or not namesakes else replace(run, name=other_name))
    return named


def _is_seed(run: Run, other: Run) -> bool:
    return bool(run.config and other.config) and not differing([other.config, run.config], SEED_OR_LENGTH)


def _under_name(run: Run, answers: Sequence[Answers]) -> list[Answers]:
    """Name the answers in a run's folder, or in one that has a name, as it is, if they are of one model.

    Models beside its checkpoints keep their names.
    """
    trained = {answer.model for answer in answers if answer.step is not None}
    models = trained or {answer.model for answer in answers}
    if len(models) > 1 or (run.metrics.empty and not run.is_named):
        return list(answers)
    return [replace(answer, model=run.name) if answer.model in models else answer for answer in answers]


def _assigned(answers: Sequence[Answers], runs: Sequence[Run]) -> list[Answers]:
    """The answers in the order of their runs, those of a run's checkpoints under the name of the run."""
    paths = [run.path.resolve() for run in runs]
    folders = [path.parent if path.is_file() else path for path in paths]
    only_run = {folder: run for folder, run in zip(folders, runs, strict=True) if folders.count(folder) == 1}
    assigned = [_under_run(answer, only_run) for answer in answers]
    order = [run.name for run in runs]
    return sorted(assigned, key=lambda answer: order.index(answer.model) if answer.model in order else len(order))


def _under_run(answer: Answers, by_folder: Mapping[Path, Run]) -> Answers:
    """The answers with name and seed of the run whose folder, the nearest one, is or holds the model.

    A model in the run's own folder is that of its last step. Where ``cw-grpo evaluate`` has asked a checkpoint as a
    model like any other, the step is in the name of the checkpoint's folder, such as checkpoint-100 of TRL.
    """
    model = Path(str(answer.settings.get("evaluation.checkpoint", "")))
    folder = next((folder for folder in (model, *model.parents) if folder in by_folder), None)
    if folder is None:
        return answer
    run, within = by_folder[folder], model.relative_to(folder)
    trained = None if run.metrics.empty else folder
    step = answer.step
    if step is None:
        step = int(run.metrics.index.max()) if trained == model else _step_in(within)
    name = run.name
    if step is None:  # by its own name, unless that is the run's
        name = f"{run.name}, {within if answer.model == run.name else answer.model}"
    return replace(answer, model=name, step=step, run=trained, seed=run.seed)


def _step_in(place: Path) -> int | None:
    """The step in ``checkpoint-100`` of TRL, ``global_step_100`` of SkyRL or ``global_step100`` of OpenRLHF."""
    match = re.search(r"(?:checkpoint-|global_step_?)(\d+)", str(place))
    return int(match[1]) if match else None
