"""Reads the folders that ``cw-grpo report`` compares: their runs, graded answers and token records."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cw_plugin.errors import DataError
from cw_plugin.evaluation.answers import Answers, read_answers
from cw_plugin.files import files_in, split_name
from cw_plugin.records.read import PATTERN, TokenRecord, read_tokens
from cw_plugin.reports.runs import SEED_OR_LENGTH, Run, differing, read_run
from cw_plugin.reports.sentences import restarts

_NO_METRICS = "no metrics (*.jsonl of verl's file logger, trainer_state.json of TRL, TensorBoard events)"
_KEEP_THEM = "train with trainer.logger=[console,file] in verl; call trainer.save_state() after training in TRL"


@dataclass(frozen=True)
class Folder:
    """What one folder holds.

    Attributes:
        run: a run, which has no metrics if none were kept.
        answers: of evaluations below it.
        records: its token records, in order.
        notes: a sentence for each thing that is missing.
    """

    run: Run
    answers: list[Answers]
    records: list[TokenRecord]
    notes: list[str]


@dataclass(frozen=True)
class Inputs:
    """What all folders hold, in their order.

    Attributes:
        runs: those that have metrics.
        answers: of evaluations. Those of a run's checkpoint have its name and seed.
        recorded: method -> the folders that hold its token records.
        notes: a sentence for each run with repeated steps, and for each thing that is missing.
    """

    runs: list[Run]
    answers: list[Answers]
    recorded: dict[str, list[Folder]]
    notes: list[str]


def read_inputs(arguments: Sequence[str]) -> Inputs:
    """Read each ``FOLDER`` or ``NAME=FOLDER``.

    A folder that is given twice, holds nothing or is damaged is a DataError, as are folders of which none has metrics
    or graded answers.
    """
    folders: list[Folder] = []
    for argument in arguments:
        folders.append(_read_folder(argument, [folder.run for folder in folders]))
    all_runs = [folder.run for folder in folders]
    runs = [run for run in all_runs if len(run.metrics)]
    answers = [answer for folder in folders for answer in folder.answers]
    if not runs and not answers:
        paths = ", ".join(str(run.path) for run in all_runs)
        raise DataError(f"{paths}: token records alone, and {_NO_METRICS}; {_KEEP_THEM}; cw-grpo tokens shows records")
    recorded: dict[str, list[Folder]] = {}
    for folder in folders:
        if folder.records:
            recorded.setdefault(folder.run.name, []).append(folder)
    missing = [note for folder in folders for note in folder.notes]
    return Inputs(runs, _assigned(answers, all_runs), recorded, [*restarts(runs), *missing])


def _read_folder(argument: str, earlier: Sequence[Run]) -> Folder:
    run = read_run(argument)
    if run.path.resolve() in [other.path.resolve() for other in earlier]:
        raise DataError(f"{run.path} is given twice; give the folder of each run once")
    is_named = split_name(argument)[0] is not None
    if not is_named:
        run = _told_apart(run, earlier)
    has_metrics = len(run.metrics) > 0
    has_records = bool(files_in(run.path, PATTERN))
    graded = read_answers(run.path)
    answers = _under_name(run.name, graded.answers) if is_named or has_metrics else graded.answers
    if not (has_metrics or has_records or answers):
        raise DataError(f"{run.path} holds {_NO_METRICS}, no graded answers and no token records; {_KEEP_THEM}")
    notes = []
    if not (has_metrics or answers):
        notes.append(f"{run.path} holds {_NO_METRICS}; {_KEEP_THEM}.")
    notes += graded.notes
    records = []
    if has_records:
        try:
            records = read_tokens(run.path)
        except DataError as error:
            notes.append(f"{run.name}: no tokens; {error}.")
    return Folder(run, answers, records, notes)


def _under_name(name: str, answers: Sequence[Answers]) -> list[Answers]:
    """Name the answers as their folder is, if they are of one model. Models beside its checkpoints keep their names."""
    trained = {answer.model for answer in answers if answer.step is not None}
    models = trained or {answer.model for answer in answers}
    if len(models) > 1:
        return list(answers)
    return [replace(answer, model=name) if answer.model in models else answer for answer in answers]


def _told_apart(run: Run, earlier: Sequence[Run]) -> Run:
    """The run, with its folder in its name if it is no seed of the earlier run that has the same name."""
    for namesake in earlier:
        if namesake.name == run.name:
            if differing([namesake.config, run.config], SEED_OR_LENGTH):
                return replace(run, name=f"{run.name}, {'/'.join(run.path.resolve().parts[-2:])}")
            return run
    return run


def _assigned(answers: Sequence[Answers], runs: Sequence[Run]) -> list[Answers]:
    """The answers in the order of their runs. Those of a run's checkpoint get its name and seed."""
    by_path = {run.path.resolve(): run for run in runs}
    assigned = []
    for answer in answers:
        checkpoint = Path(str(answer.settings.get("evaluation.checkpoint", "")))
        owners = [by_path[path] for path in checkpoint.parents if path in by_path]
        assigned.append(replace(answer, model=owners[-1].name, seed=owners[-1].seed) if owners else answer)
    order = [run.name for run in runs]
    return sorted(assigned, key=lambda answer: order.index(answer.model) if answer.model in order else len(order))
