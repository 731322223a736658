"""``cw-grpo report``: writes one page, its tables and its figures from folders of runs and evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

from cw_plugin.files import write_whole
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.evaluation.graded_answers import Answers
from cw_plugin.lab.evaluation.scores import answers_frame, base_or_first, last_scores
from cw_plugin.lab.reports import figures, tables
from cw_plugin.lab.reports.comparison import compare
from cw_plugin.lab.reports.covariance import table_1
from cw_plugin.lab.reports.formats import Table, csv
from cw_plugin.lab.reports.inputs import read_inputs
from cw_plugin.lab.reports.metrics import ENTROPY, NORM, REWARD
from cw_plugin.lab.reports.notes import NOT_ALL_ASKED, notes_of
from cw_plugin.lab.reports.read_records import TokenRecord, tokens_of
from cw_plugin.lab.reports.runs import ACCURACY, Run, all_metrics
from cw_plugin.lab.reports.tokens import write_page

Recorded = Mapping[str, Sequence[Sequence[TokenRecord]]]  # method -> the records of each of its runs


@dataclass(frozen=True)
class Curve:
    """A metric that is drawn over steps; a share is drawn in per cent."""

    metric: str
    title: str
    caption: str = ""
    is_share: bool = False


CURVES = {  # by the name of their files
    "reward": Curve(REWARD, "Reward"),
    "accuracy": Curve(
        ACCURACY,
        "Accuracy on validation",
        "Runs that start from the same model differ at step 0 by chance alone.",
        is_share=True,
    ),
    "entropy": Curve(ENTROPY, "Policy entropy, nats"),
    "grad-norm": Curve(NORM, "Gradient norm, before clipping"),
    "gradient-share": Curve(
        "cw_grpo/extreme_gradient_share",
        "Squared gradient of extreme tokens",
        "Extreme tokens have a Gaussian kernel w below 0.5. Plain GRPO leaves them their weight.",
        is_share=True,
    ),
    "balance": Curve(
        "cw_grpo/extreme_balance",
        "Balance of extreme tokens, Σc / Σ|c|",
        "Near 0, they occur about as often in good as in bad responses, as noise does.",
    ),
    "downweighted": Curve("cw_grpo/downweighted_share", "Tokens with w below 0.5", is_share=True),
    "covariance": Curve(
        "cw_grpo/covariance_before",
        "Cov(log π, A) before the weights",
        "Where it is positive, theory says that entropy falls. Only the sign means something.",
    ),
    "covariance-after": Curve("cw_grpo/covariance_after", "Cov(log π, A) after the weights"),
    "length": Curve("response_length/mean", "Response length, tokens"),
}
OVERVIEW = ("reward", "accuracy", "entropy", "grad-norm")  # above the fold
EXTREMES = "How much of the sum of c the most extreme tokens of either side hold: the paper's Figure 3."


@dataclass(frozen=True)
class Drawing:
    """A figure with its caption."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the page that is folded: figures by the name of their files, then tables."""

    title: str
    drawings: dict[str, Drawing] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """What the terminal shows of a report.

    Attributes:
        differences: the table of differences between methods.
        notes: a sentence for each thing that is missing, and for each run that was restarted.
    """

    differences: Table
    notes: list[str]


def write_report(arguments: Sequence[str], out: Path) -> Report:
    """Write a page about runs and evaluations, its tables, its figures, and what they are made from.

    These are ``report.html``, each table as CSV and LaTeX, each figure as SVG and PDF, every metric as ``metrics.csv``,
    and a page of tokens for each method. What :func:`.inputs.read_inputs` refuses, or an ``out`` that cannot be
    written, is a DataError.

    Args:
        arguments: each ``FOLDER`` or ``NAME=FOLDER``.
        out: the folder to write to.
    """
    inputs = read_inputs(arguments)
    metrics, graded = all_metrics(inputs.runs), answers_frame(inputs.answers)
    names = list(dict.fromkeys([*metrics.method, *graded.method[graded.step >= 0]]))
    scores = last_scores(graded)
    comparison = compare(metrics, {name: _is_grpo(name, inputs.runs) for name in names}, scores)
    differences = tables.differences_table(comparison, notes_of(comparison, inputs.runs, metrics))
    curves = _curves(metrics, names, OVERVIEW)
    sections = [
        Section("More curves", _curves(metrics, names, [name for name in CURVES if name not in OVERVIEW])),
        _tokens(inputs.recorded, names),
        _checkpoints(inputs.answers, graded, metrics, comparison.reference),
        _settings(inputs.runs, names),
    ]
    drawings = dict(curves)
    shown_tables = [differences]
    for section in sections:
        drawings |= section.drawings
        shown_tables += section.tables
    missing = [NOT_ALL_ASKED] if scores.empty and (graded.step >= 0).any() else []
    report = Report(differences, [*missing, *inputs.notes])
    try:
        drawn = _save_figures(drawings, out)
        token_pages = _write_token_pages(inputs.recorded, out)
        texts = {"metrics.csv": csv(metrics), **_texts_of_tables(shown_tables)}
        texts["report.html"] = _page(
            out,
            title=", ".join(names) or "Report",
            runs=inputs.runs,
            curves=curves,
            notes=report.notes,
            differences=differences,
            sections=sections,
            pages=token_pages,
            files=[*texts, *drawn],
        )
        for file, text in texts.items():
            write_whole(out / file, text)
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}); give another folder with --out") from None
    return report


def _is_grpo(name: str, runs: Sequence[Run]) -> bool:
    """Whether all runs of this name are plain GRPO; an evaluation alone says so by its name."""
    seeds = [run for run in runs if run.name == name]
    if not seeds:
        return name.upper() == "GRPO"
    return all(run.is_grpo for run in seeds)


def _save_figures(drawings: Mapping[str, Drawing], out: Path) -> list[str]:
    """Write the figures, and return the names of their files."""
    saved = []
    for name, drawing in drawings.items():
        saved += [file.name for file in figures.save(drawing.figure, out / name)]
    return saved


def _write_token_pages(recorded: Recorded, out: Path) -> dict[str, str]:
    """Write a page of tokens for each method, and return the methods by the names of these files.

    It shows the first and the last record of its first run, because a page of all would be large.
    """
    pages = {}
    for number, (name, (records, *_)) in enumerate(recorded.items(), 1):
        file = f"tokens-{number}.html"
        ends = (records[0].step, records[-1].step)
        write_page(name, [record for record in records if record.step in ends], out / file)
        pages[file] = name
    return pages


def _texts_of_tables(shown: Sequence[Table]) -> dict[str, str]:
    """The CSV and the LaTeX of each table, by the names of their files."""
    texts = {}
    for table in shown:
        texts[f"{table.name}.csv"] = table.csv()
        texts[f"{table.name}.tex"] = table.latex()
    return texts


def _page(out: Path, **values: object) -> str:
    """Fill in the template; the figures are read from ``out``."""
    environment = Environment(loader=PackageLoader("cw_plugin.lab.reports", "."), autoescape=True)
    environment.filters["svg"] = lambda name: "<svg" + (out / f"{name}.svg").read_text("utf-8").split("<svg", 1)[1]
    return environment.get_template("report.html.j2").render(**values)


def _tokens(recorded: Recorded, names: Sequence[str]) -> Section:
    tokens = {name: tokens_of([record for of_run in runs for record in of_run]) for name, runs in recorded.items()}
    drawings = {}
    if tokens:
        drawings["contributions"] = Drawing(figures.contributions(tokens, names), EXTREMES)
    shown = [replace(table_1(name, tokens[name]), name=f"table1-{number}") for number, name in enumerate(tokens, 1)]
    return Section("Tokens: Table 1, Figure 3", drawings, shown)


def _checkpoints(answers: Sequence[Answers], graded: pd.DataFrame, metrics: pd.DataFrame, reference: str) -> Section:
    """pass@1 and pass@k of each checkpoint.

    They are compared with a model that no run has trained, else with the first one; pass@k, also with the reference of
    the other comparisons.
    """
    title = "Checkpoints: Tables 2 to 4"
    if graded.empty:
        return Section(title)
    base = base_or_first(graded)
    entropy = metrics[metrics.metric == ENTROPY].groupby(["method", "step"]).value.mean()
    references = [base, reference] if reference and reference != base else [base]
    settings: dict[str, list[dict[str, object]]] = {}
    for answer in answers:
        settings.setdefault(answer.model, []).append(answer.settings)
    shown = [
        tables.scores_table(graded, base, entropy.to_dict()),
        tables.pass_at_k_table(graded, references),
        tables.settings("table4", "Table 4: settings in which the evaluations differ", settings),
    ]
    return Section(title, {}, [table for table in shown if table is not None])


def _settings(runs: Sequence[Run], names: Sequence[str]) -> Section:
    configs = {name: [run.config for run in runs if run.name == name] for name in names}
    table = tables.settings("table5", "Table 5: settings in which the runs differ", configs)
    return Section("Settings: Table 5", {}, [] if table is None else [table])


def _curves(metrics: pd.DataFrame, names: Sequence[str], curves: Sequence[str]) -> dict[str, Drawing]:
    """A figure for each of these curves whose metric was logged."""
    drawn = {}
    for name in curves:
        curve = CURVES[name]
        logged = metrics[metrics.metric == curve.metric]
        if logged.empty:
            continue
        window = 1 if name == "accuracy" else max(1, logged.groupby("run").size().max() // 20)
        series = {}
        for method in names:
            runs = logged[logged.method == method].groupby("run")
            series[method] = [run.set_index("step").value for _, run in runs]
        means = f" Means of {window} steps." if window > 1 else ""
        figure = figures.curves(series, curve.title, window=window, percent=curve.is_share)
        drawn[name] = Drawing(figure, curve.caption + means)
    return drawn
