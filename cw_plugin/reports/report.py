"""``cw-grpo report``: writes one page, and its tables as files, from folders of runs and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cw_plugin.errors import NoMetricsError, ReportError
from cw_plugin.files import write_whole
from cw_plugin.reports import plots, records, tables
from cw_plugin.reports.curves import CURVES
from cw_plugin.reports.evaluations import Evaluation, evaluation_folders, read_evaluations, validation_dumps
from cw_plugin.reports.page import page
from cw_plugin.reports.runs import Run, read_config, read_run, split_name
from cw_plugin.reports.seeds import check_runs, refuse_twice


@dataclass
class Material:
    """Everything that the given folders hold."""

    runs: list[Run] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    configs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    records: dict[str, list[records.Records]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def collect(arguments: Sequence[str]) -> Material:
    """Read each ``FOLDER`` or ``NAME=FOLDER`` for metrics, answers, configuration and covariance records.

    Raises:
        ReportError: a folder has neither metrics nor answers, or a damaged file; or folders of the same name are not
            seeds of one method.
    """
    material = Material()
    refuse_twice(map(split_name, arguments))
    for argument in arguments:
        name, path = split_name(argument)
        answers = path.is_dir() and bool(evaluation_folders(path) or validation_dumps(path))
        try:
            material.runs.append(read_run(argument))
        except NoMetricsError:
            if not answers:
                raise
        if answers:
            material.evaluations += read_evaluations(argument)
        if (config := read_config(path)) is not None:
            material.configs.append((name, config))
        if records.has_records(path):
            material.records.setdefault(name, []).append(records.read_records(path))
    material.missing += check_runs([(run.name, run.path) for run in material.runs])
    graded = {evaluation.name for evaluation in material.evaluations}
    for name in dict.fromkeys(run.name for run in material.runs if run.name not in graded):
        material.missing.append(f"{name}: no graded answers, so no accuracies.")
    return material


def write_report(
    arguments: Sequence[str],
    out: Path,
    base: str | None = None,
    step: int | None = None,
    paper_model: str | None = None,
) -> tuple[list[tables.Table], list[Path], list[str]]:
    """Write ``report.html``, ``report.md`` and for each table a CSV and a LaTeX file.

    Returns:
        The tables, the files that were written, and a sentence for each thing that is missing.

    Raises:
        ReportError: as :func:`collect`.
    """
    material = collect(arguments)
    shown = _tables(material, base, step, paper_model)
    figures = _figures(material)
    title = "CW-GRPO: " + ", ".join(dict.fromkeys(split_name(argument)[0] for argument in arguments))
    notes = material.missing
    files = {
        "report.html": page(title, shown, figures, notes),
        "report.md": "\n".join([f"# {title}", "", *(f"{note}  " for note in notes), *(t.markdown() for t in shown)]),
    }
    for table in shown:
        files |= {f"{table.name}.csv": table.csv(), f"{table.name}.tex": table.latex()}
    written = []
    try:
        for name, text in files.items():
            write_whole(out / name, text)
            written.append(out / name)
    except OSError as error:
        raise ReportError(f"{out} cannot be written ({error.strerror}); give another folder with --out") from None
    return shown, written, notes


def _tables(material: Material, base: str | None, step: int | None, paper_model: str | None) -> list[tables.Table]:
    found = []
    validations = [evaluation for evaluation in material.evaluations if evaluation.is_validation]
    evaluations = [evaluation for evaluation in material.evaluations if not evaluation.is_validation]
    if evaluations:
        steps = dict.fromkeys(evaluation.step for evaluation in evaluations)
        if step is not None and step not in steps:
            known = ", ".join(str(known) for known in steps if known is not None)
            raise ReportError(f"nothing was evaluated at step {step}; there are answers at {known or 'no step'}")
        chosen = tables.at_step(evaluations, step)
        if base is not None and base not in {evaluation.name for evaluation in chosen}:
            names = ", ".join(evaluation.name for evaluation in chosen)
            raise ReportError(f"there is no evaluation named {base}; --base is one of {names}")
        chosen = tables.base_first(chosen, base)
        found.append(tables.table_2(chosen, paper_model))
        if len(chosen) > 1:
            found.append(tables.differences(chosen))
        if any(evaluation.step is not None for evaluation in evaluations):
            found.append(tables.table_3(evaluations, material.runs, paper_model is not None))
        found.append(tables.table_4(evaluations))
    if validations:
        title = "Validation during training, and the policy's entropy in the step"
        found.append(replace(tables.table_3(validations, material.runs), name="validation", title=title))
    if material.configs:
        found.append(tables.table_5(material.configs))
    for number, (name, several) in enumerate(material.records.items(), 1):
        table = tables.table_1(records.title(name, several), records.all_tokens(several))
        found.append(replace(table, name=f"table1-{number}"))
    return found


def _figures(material: Material) -> list[Figure]:
    logged = {metric for run in material.runs for metric in run.metrics}
    names = [name for name, (metric, *_) in CURVES.items() if metric in logged]
    names += ["accuracy"] if plots.accuracy_metrics(material.runs) else []
    figures = [figure for name in names for figure in plots.named(material.runs, name)]
    if material.records:
        covariances = {name: records.all_tokens(several) for name, several in material.records.items()}
        figures += [plots.contributions(covariances), plots.weight_curve(covariances)]
    # A correlation of fewer steps says nothing.
    forecasts = [run for run in material.runs if len(run.metrics.get("cw_grpo/entropy_change", {})) >= 30]
    return figures + [plots.forecast(run) for run in forecasts]
