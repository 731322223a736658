"""Reads the folders that ``cw-grpo report`` compares: their runs, graded answers and token records."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cw_plugin.lab.arguments import split_name
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.evaluation.graded_answers import Answers, read_answers
from cw_plugin.lab.reports.read_records import PATTERN, TokenRecord, read_tokens
from cw_plugin.lab.reports.runs import SEED_OR_LENGTH, Run, differing, read_run
from cw_plugin.lab.result_files import files_in

_NO_METRICS = "no metrics (*.jsonl of verl's file logger, trainer_state.json of TRL, TensorBoard events)"
_KEEP_THEM = "train with trainer.logger=[console,file] in verl; call trainer.save_state() after training in TRL"


@dataclass(frozen=True)
class Folder:
    """What one folder holds.

    Attributes:
        run: a run, which has no metrics if none were kept.
        first_name: of the run, before it was told apart from runs of the same name.
        answers: of evaluations below it.
        records: its token records, in order.
        notes: a sentence for each thing that is missing.
    """

    run: Run
    first_name: str
    answers: list[Answers]
    records: list[TokenRecord]
    notes: list[str]


@dataclass(frozen=True)
class Inputs:
    """What all folders hold, in their order.

    Attributes:
        runs: those that have metrics.
        answers: of evaluations. Those of a run's checkpoints have its name and seed.
        recorded: method -> the token records of each of its runs that has some.
        notes: a sentence for each run that was restarted, and for each thing that is missing.
    """

    runs: list[Run]
    answers: list[Answers]
    recorded: dict[str, list[list[TokenRecord]]]
    notes: list[str]


def read_inputs(arguments: Sequence[str]) -> Inputs:
    """Read each ``FOLDER`` or ``NAME=FOLDER``.

    A folder that is given twice, holds nothing or is damaged is a DataError, as are folders of which none has metrics
    or graded answers.
    """
    folders: list[Folder] = []
    for argument in arguments:
        folders.append(_read_folder(argument, folders))
    runs = [folder.run for folder in folders if len(folder.run.metrics)]
    answers = [answer for folder in folders for answer in folder.answers]
    notes = [note for folder in folders for note in folder.notes]
    if not runs and not answers:
        shown_by = " cw-grpo tokens shows token records." if any(folder.records for folder in folders) else ""
        raise DataError(f"nothing can be compared. {' '.join(notes)}{shown_by}")
    recorded: dict[str, list[list[TokenRecord]]] = {}
    for folder in folders:
        if folder.records:
            recorded.setdefault(folder.run.name, []).append(folder.records)
    return Inputs(runs, _assigned(answers, [folder.run for folder in folders]), recorded, notes)


def _read_folder(argument: str, earlier: Sequence[Folder]) -> Folder:
    run = read_run(argument)
    first_name = run.name
    if run.path.resolve() in [folder.run.path.resolve() for folder in earlier]:
        raise DataError(f"{run.path} is given twice; give the folder of each run once")
    is_named = split_name(argument)[0] is not None
    if not is_named:
        run = _told_apart(run, earlier)
    has_metrics = len(run.metrics) > 0
    has_records = bool(files_in(run.path, PATTERN))
    graded = read_answers(run.path)
    answers = _under_name(run.name, graded.answers) if is_named or has_metrics else graded.answers
    is_evaluation = bool(answers or graded.notes)
    if not (has_metrics or has_records or is_evaluation or run.notes):
        raise DataError(f"{run.path} holds {_NO_METRICS}, no graded answers and no token records; {_KEEP_THEM}")
    notes = [*run.notes, *graded.notes]
    if not (has_metrics or is_evaluation):
        notes.append(f"{run.path} holds {_NO_METRICS}; {_KEEP_THEM}.")
    if run.lost:
        notes.append(
            f"{run.path}: after a restart, {len(run.lost)} steps were trained again or given up, the first of them is "
            f"step {run.lost[0]}; the page shows what the last model descends from."
        )
    records = []
    if has_records:
        try:
            records = _kept(read_tokens(run.path), run)
        except DataError as error:
            notes.append(f"{run.name}: no tokens; {error}.")
    return Folder(run, first_name, answers, records, notes)


def _kept(records: Sequence[TokenRecord], run: Run) -> list[TokenRecord]:
    """The records without those of steps that a restart gave up."""
    given_up = set(run.lost).difference(run.metrics.index)
    return [record for record in records if record.step not in given_up]


def _under_name(name: str, answers: Sequence[Answers]) -> list[Answers]:
    """Name the answers as their folder is, if they are of one model. Models beside its checkpoints keep their names."""
    trained = {answer.model for answer in answers if answer.step is not None}
    models = trained or {answer.model for answer in answers}
    if len(models) > 1:
        return list(answers)
    return [replace(answer, model=name) if answer.model in models else answer for answer in answers]


def _told_apart(run: Run, earlier: Sequence[Folder]) -> Run:
    """The run under the name of an earlier one, if it is a seed of it; else with its folder, if its name is taken.

    A run without settings is no seed of another: nothing shows that both have the same method.
    """
    namesakes = [folder.run for folder in earlier if folder.first_name == run.name]
    for namesake in namesakes:
        if run.config and namesake.config and not differing([namesake.config, run.config], SEED_OR_LENGTH):
            return replace(run, name=namesake.name)
    if not namesakes:
        return run
    return replace(run, name=f"{run.name}, {run.path}")  # which is given once


def _assigned(answers: Sequence[Answers], runs: Sequence[Run]) -> list[Answers]:
    """The answers in the order of their runs, those of a run's checkpoints under the name of the run."""
    by_folder = _by_folder(runs)
    assigned = [_under_run(answer, by_folder) for answer in answers]
    order = [run.name for run in runs]
    return sorted(assigned, key=lambda answer: order.index(answer.model) if answer.model in order else len(order))


def _by_folder(runs: Sequence[Run]) -> dict[Path, Run]:
    """Each run by its folder, also if it is given as a file in it; none where several are in one folder."""
    by_folder: dict[Path, list[Run]] = {}
    for run in runs:
        path = run.path.resolve()
        by_folder.setdefault(path.parent if path.is_file() else path, []).append(run)
    return {folder: several[0] for folder, several in by_folder.items() if len(several) == 1}


def _under_run(answer: Answers, by_folder: Mapping[Path, Run]) -> Answers:
    """The answers with name and seed of the run whose folder, the nearest one, is or holds the model.

    A model in the run's own folder is that of its last step. Where ``cw-grpo evaluate`` has asked a checkpoint as a
    model like any other, the step is in the name of the checkpoint's folder, such as checkpoint-100 of TRL.
    """
    place = answer.settings.get("evaluation.checkpoint")
    if not place:
        return answer
    model = Path(str(place))
    folder = next((folder for folder in (model, *model.parents) if folder in by_folder), None)
    if folder is None:
        return answer
    run = by_folder[folder]
    step = answer.step
    if step is None:
        step = _last_step(run) if model == folder else _step_in(model.relative_to(folder))
    name = run.name
    if step is None:  # by its own name, unless that is the run's
        name = f"{run.name}, {model.relative_to(folder) if answer.model == run.name else answer.model}"
    return replace(answer, model=name, step=step, run=folder if len(run.metrics) else None, seed=run.seed)


def _last_step(run: Run) -> int | None:
    return int(run.metrics.index.max()) if len(run.metrics) else None


def _step_in(place: Path) -> int | None:
    """The step in ``checkpoint-100`` of TRL, ``global_step_100`` of SkyRL or ``global_step100`` of OpenRLHF."""
    match = re.search(r"(?:checkpoint-|global_step_?)(\d+)", str(place))
    return int(match[1]) if match else None
