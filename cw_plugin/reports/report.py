"""``cw-grpo report``: writes one page, and its tables as files, from folders of runs and evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cw_plugin.errors import NoMetricsError, ReportError
from cw_plugin.files import write_whole
from cw_plugin.reports import paper, plots, records, tables
from cw_plugin.reports.curves import CAPTIONS, CURVES
from cw_plugin.reports.evaluations import Evaluation, evaluation_folders, read_evaluations, validation_dumps
from cw_plugin.reports.page import page
from cw_plugin.reports.runs import Run, read_config, read_run, split_name
from cw_plugin.reports.seeds import MODEL, check_runs, refuse_twice, same_model, seed_of, setting
from cw_plugin.reports.tokens import write_token_page
from cw_plugin.reports.verdict import BEFORE, Verdict, verdict

START = "all runs, before training"
SAME_START = (
    "All runs start from the same model, so that their differences at step 0 are noise: step 0 shows the mean of all."
)

Part = Verdict | tables.Table


@dataclass
class Material:
    """Everything that the given folders hold."""

    runs: list[Run] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    configs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    records: dict[str, list[records.Records]] = field(default_factory=dict)
    # The first run of each name -> its page of tokens, and the last recorded step.
    recorded: dict[str, tuple[str, int]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def token_pages(self) -> dict[str, str]:
        """File -> what it is."""
        return {
            file: f"Tokens of {split_name(run)[0]} in step {step}, with their weights"
            for run, (file, step) in self.recorded.items()
        }

    @property
    def validations(self) -> list[Evaluation]:
        """Answers in training, put together by name and step, and those before it under one name if all runs start from
        the same model."""
        found = [evaluation for evaluation in self.evaluations if evaluation.is_validation]
        return tables.merge_seeds([replace(e, name=START) if self.common_start and e.step == 0 else e for e in found])

    @property
    def common_start(self) -> bool:
        return len(self.runs) > 1 and same_model([run.config for run in self.runs])


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
        if (config := read_config(path)) is not None:
            material.configs.append((name, config))
        recorded = records.has_records(path)
        try:
            material.runs.append(replace(read_run(argument), config=config or {}))
        except NoMetricsError:
            if not (answers or recorded):
                raise
        if answers:
            found = read_evaluations(argument)
            seed = seed_of(config or {})
            material.evaluations += [replace(each, seed=seed) if each.is_validation else each for each in found]
        if recorded:
            try:
                tokens = records.read_records(path)
            except ReportError as error:
                material.missing.append(f"{name}: no tokens; {error}.")
                continue
            if name not in material.records:
                material.recorded[argument] = (f"tokens-{len(material.recorded) + 1}.html", max(tokens))
            material.records.setdefault(name, []).append(tokens)
    material.missing += check_runs([(run.name, run.path) for run in material.runs])
    order = list(dict.fromkeys([*(run.name for run in material.runs), *(e.name for e in material.evaluations)]))
    for number, each in enumerate(material.evaluations):
        trained = [
            run for run in material.runs if run.path.resolve() in Path(each.settings.get("checkpoint", "")).parents
        ]
        material.evaluations[number] = replace(each, seed=seed_of(trained[0].config)) if trained else each
    material.evaluations.sort(key=lambda each: order.index(each.name))
    graded = {evaluation.name for evaluation in material.evaluations}
    for name in dict.fromkeys(run.name for run in material.runs if not plots.accuracy_metrics([run])):
        if name not in graded:
            material.missing.append(f"{name}: no graded answers, so no accuracies.")
    return material


def write_report(
    arguments: Sequence[str],
    out: Path,
    base: str | None = None,
    step: int | None = None,
    paper_model: str | None = None,
) -> tuple[list[Part], list[Path], list[str]]:
    """Write ``report.html``, ``report.md``, for each table a CSV and a LaTeX file, and a page of tokens for each name.

    Returns:
        The verdict, the tables, the files that were written, and a sentence for each thing that is missing.

    Raises:
        ReportError: as :func:`collect`.
    """
    material = collect(arguments)
    chosen = _chosen(material, base, step)
    first = verdict(material.runs, chosen or _last_validations(material))
    shown = _tables(material, chosen, paper_model)
    title = "Report: " + ", ".join(dict.fromkeys(split_name(argument)[0] for argument in arguments))
    notes = material.missing
    parts: list[Part] = [first, *shown]
    files = {
        "report.html": page(title, first, _figures(material), shown, notes, material.token_pages),
        "report.md": "\n".join([f"# {title}", "", *(f"{note}  " for note in notes), *(p.markdown() for p in parts)]),
    }
    for table in shown:
        files |= {f"{table.name}.csv": table.csv(), f"{table.name}.tex": table.latex()}
    written = []
    try:
        for name, text in files.items():
            write_whole(out / name, text)
            written.append(out / name)
        for argument, (file, last) in material.recorded.items():
            write_token_page(argument, out / file, (last, last))  # a page of all steps could be very large
            written.append(out / file)
    except OSError as error:
        raise ReportError(f"{out} cannot be written ({error.strerror}); give another folder with --out") from None
    return parts, written, notes


def _chosen(material: Material, base: str | None, step: int | None) -> list[Evaluation]:
    """The evaluations of Table 2, the base first."""
    evaluations = [evaluation for evaluation in material.evaluations if not evaluation.is_validation]
    steps = dict.fromkeys(evaluation.step for evaluation in evaluations)
    if evaluations and step is not None and step not in steps:
        known = ", ".join(str(known) for known in steps if known is not None)
        raise ReportError(f"nothing was evaluated at step {step}; there are answers at {known or 'no step'}")
    chosen = tables.at_step(evaluations, step)
    if chosen and base is not None and base not in {evaluation.name for evaluation in chosen}:
        names = ", ".join(evaluation.name for evaluation in chosen)
        raise ReportError(f"there is no evaluation named {base}; --base is one of {names}")
    return tables.base_first(chosen, base)


def _last_validations(material: Material) -> list[Evaluation]:
    """The last validation that all runs have; for one method also that before training."""
    runs = Counter(run.name for run in material.runs)
    complete = [each for each in material.validations if max(len(each.of_runs), 1) == runs[each.name]]
    steps = [{each.step or 0 for each in complete if each.name == name} for name in runs]
    last = max(set.intersection(*steps), default=0) if steps else 0
    before = [replace(each, name=BEFORE) for each in material.validations if len(runs) == 1 and each.step == 0]
    return [*before, *(each for each in complete if each.step == last)] if last else []


def _tables(material: Material, chosen: Sequence[Evaluation], paper_model: str | None) -> list[tables.Table]:
    found = []
    evaluations = [evaluation for evaluation in material.evaluations if not evaluation.is_validation]
    if chosen:
        found.append(tables.table_2(chosen, paper_model))
        if len(chosen) > 1:
            found.append(tables.differences(chosen))
        if any(evaluation.step is not None for evaluation in evaluations):
            found.append(tables.table_3(evaluations, material.runs, paper_model is not None))
        found.append(tables.table_4(evaluations))
    if validations := material.validations:
        title = "Validation during training, and the policy's entropy in the step"
        table = tables.table_3(validations, material.runs)
        notes = table.notes + [SAME_START] * any(each.name == START for each in validations)
        found.append(replace(table, name="validation", title=title, notes=notes))
    if material.configs:
        found.append(tables.table_5(material.configs))
    for number, (name, several) in enumerate(material.records.items(), 1):
        table = tables.table_1(records.title(name, several), records.all_tokens(several))
        models = [setting(config, MODEL) or "" for of_name, config in material.configs if of_name == name]
        if paper_model is None and not any(model.endswith(paper.TABLE_1_MODEL) for model in models):
            table = tables.without_reported(table)
        found.append(replace(table, name=f"table1-{number}"))
    return found


def _figures(material: Material) -> list[tuple[Figure, str]]:
    """Each with its caption: reward, accuracy, entropy and gradient norm first."""
    runs = material.runs
    logged = {metric for run in runs for metric in run.metrics}
    window = max(1, max((len(series) for run in runs for series in run.metrics.values()), default=0) // 20)
    means = f" Mean of the last {window} steps." if window > 1 else ""
    drawn = [
        (plots.curve(runs, *CURVES[name], window), f"{CAPTIONS.get(name, '')}{means}")
        for name in CURVES
        if CURVES[name][0] in logged
    ]
    answers = [replace(each, name="" if each.name == START else each.name) for each in material.validations]
    validated = []
    for metric in plots.accuracy_metrics(runs):
        intervals = plots.accuracies(runs, metric, answers, material.common_start)
        bare = dict.fromkeys(name for (name, _), (_, low, _) in intervals.items() if low != low)
        caption = SAME_START if material.common_start and any(step == 0 for _, step in intervals) else ""
        caption += f" No interval for {', '.join(bare)}: one run, whose answers were not kept." if bare else ""
        validated.append((plots.accuracy(runs, metric, intervals), caption.strip()))
    drawn[1:1] = validated
    if material.records:
        covariances = {name: records.all_tokens(several) for name, several in material.records.items()}
        names = list(dict.fromkeys([*(run.name for run in runs), *covariances]))
        drawn += [(draw(covariances, names), "") for draw in (plots.contributions, plots.weight_curve)]
    for index, name in enumerate(dict.fromkeys(run.name for run in runs)):
        first = next(run for run in runs if run.name == name)
        if len(first.metrics.get("cw_grpo/entropy_change", {})) >= 30:  # a correlation of fewer steps says nothing
            caption = "Only the first run is shown." * (sum(run.name == name for run in runs) > 1)
            drawn.append((plots.forecast(first, index), caption))
    return drawn
