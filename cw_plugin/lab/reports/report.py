"""``cw-grpo report``: writes one page, its tables and its figures from folders of runs and evaluations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

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
from cw_plugin.lab.reports.inputs import read_inputs
from cw_plugin.lab.reports.metrics import ENTROPY, NORM, REWARD
from cw_plugin.lab.reports.notes import NOT_ALL_ASKED, answers_of, notes_of
from cw_plugin.lab.reports.read_records import TokenRecord, tokens_of
from cw_plugin.lab.reports.runs import ACCURACY, VALIDATION_REWARD, Run, all_metrics
from cw_plugin.lab.reports.table_formats import Table
from cw_plugin.lab.reports.tokens import write_page

Recorded = Mapping[str, Sequence[Sequence[TokenRecord]]]  # method -> the records of each of its runs


@dataclass(frozen=True)
class Curve:
    """A metric that is drawn over steps; a share is drawn in per cent. ``name`` is that of its files."""

    name: str
    metric: str
    title: str
    is_share: bool = False


OVERVIEW = (  # above the fold
    Curve("reward", REWARD, "Reward"),
    Curve("accuracy", ACCURACY, "Accuracy on validation", is_share=True),
    Curve("validation-reward", VALIDATION_REWARD, "Reward on validation"),
    Curve("entropy", ENTROPY, "Policy entropy, nats"),
    Curve("grad-norm", NORM, "Gradient norm, before clipping"),
)
MORE_CURVES = (
    Curve("gradient-share", "cw_grpo/extreme_gradient_share", "Squared gradient of extreme tokens", is_share=True),
    Curve("balance", "cw_grpo/extreme_balance", "Balance of extreme tokens, Σc / Σ|c|"),
    Curve("downweighted", "cw_grpo/downweighted_share", "Tokens with w below 0.5", is_share=True),
    Curve("covariance", "cw_grpo/covariance_before", "Cov(log π, A) before the weights"),
    Curve("covariance-after", "cw_grpo/covariance_after", "Cov(log π, A) after the weights"),
    Curve("length", "response_length/mean", "Response length, tokens"),
)
CAPTIONS = {  # name of a figure -> what to know of it
    "accuracy": "Runs that start from the same model differ at step 0 by chance alone.",
    "gradient-share": "Extreme tokens have a Gaussian kernel w below 0.5. Plain GRPO leaves them their weight.",
    "balance": "Near 0, they occur about as often in good as in bad responses, as noise does.",
    "covariance": "Where it is positive, theory says that entropy falls. Only the sign means something.",
    "contributions": "How much of the sum of c the most extreme tokens of either side hold: the paper's Figure 3.",
}


class Section(NamedTuple):
    """A part of the page: figures by the name of their files, then tables."""

    title: str
    figures: Mapping[str, Figure]
    tables: Sequence[Table]


class Report(NamedTuple):
    """What the terminal shows of a report."""

    answers: list[str]  # a sentence for each method that is compared, and for each benchmark where guessing gets far
    differences: Table  # between methods
    notes: list[str]  # a sentence for each thing that is missing


def write_report(arguments: Sequence[str], out: Path) -> Report:
    """Write a page about runs and evaluations, each ``FOLDER`` or ``NAME=FOLDER``, and what it is made from.

    These are ``report.html``, each table as CSV, each figure as SVG and PDF, every metric as ``metrics.csv``,
    and a page of tokens for each method. What :func:`.inputs.read_inputs` refuses, or an ``out`` that cannot be
    written, is a DataError.
    """
    inputs = read_inputs(arguments)
    metrics, graded = all_metrics(inputs.runs), answers_frame(inputs.answers)
    names = list(dict.fromkeys([*metrics.method, *graded.method[graded.step >= 0]]))
    scores = last_scores(graded)
    comparison = compare(metrics, {name: _is_grpo(name, inputs.runs) for name in names}, scores)
    differences = tables.differences_table(comparison, list(notes_of(comparison, inputs.runs)))
    overview = Section("Overview", _curves(metrics, names, OVERVIEW), [differences])
    folded = [
        Section("More curves", _curves(metrics, names, MORE_CURVES), []),
        _tokens(inputs.recorded, names),
        Section("Checkpoints: Tables 2 to 4", {}, _checkpoints(inputs.answers, graded, metrics, comparison.reference)),
        Section("Settings: Table 5", {}, _settings(inputs.runs, names)),
    ]
    answers = [*answers_of(comparison), *tables.guesses(graded)]
    missing = [NOT_ALL_ASKED] if scores.empty and (graded.step >= 0).any() else []
    notes = [*missing, *inputs.notes]
    try:
        for section in (overview, *folded):
            for name, figure in section.figures.items():
                figures.save(figure, out / name)
            for table in section.tables:
                write_whole(out / f"{table.name}.csv", table.csv())
        write_whole(out / "metrics.csv", metrics.to_csv(index=False))
        token_pages = _write_token_pages(inputs.recorded, out)
        environment = Environment(loader=PackageLoader("cw_plugin.lab.reports", "."), autoescape=True)
        page = environment.get_template("report.html.j2").render(
            title=", ".join(names) or "Report",
            runs=inputs.runs,
            answers=answers,
            notes=notes,
            overview=overview,
            folded=folded,
            token_pages=token_pages,
            captions=CAPTIONS,
            svg=lambda name: "<svg" + (out / f"{name}.svg").read_text("utf-8").split("<svg", 1)[1],
        )
        write_whole(out / "report.html", page)
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}); give another folder with --out") from None
    return Report(answers, differences, notes)


def _is_grpo(name: str, runs: Sequence[Run]) -> bool:
    """Whether all runs of this name are plain GRPO; an evaluation alone says so by its name."""
    seeds = [run for run in runs if run.name == name]
    return all(run.is_grpo for run in seeds) if seeds else name.upper() == "GRPO"


def _curves(metrics: pd.DataFrame, names: Sequence[str], curves: Sequence[Curve]) -> dict[str, Figure]:
    """A figure for each of these curves whose metric was logged."""
    drawn = {}
    for curve in curves:
        logged = metrics[metrics.metric == curve.metric]
        if logged.empty:
            continue
        is_rare = curve.metric in (ACCURACY, VALIDATION_REWARD)
        window = 1 if is_rare else max(1, logged.groupby("run").size().max() // 20)
        series = {}
        for method in names:
            runs = logged[logged.method == method].groupby("run")
            series[method] = [run.set_index("step").value for _, run in runs]
        drawn[curve.name] = figures.curves(series, curve.title, window=window, percent=curve.is_share)
    return drawn


def _tokens(recorded: Recorded, names: Sequence[str]) -> Section:
    tokens = {name: tokens_of([record for of_run in runs for record in of_run]) for name, runs in recorded.items()}
    drawn = {"contributions": figures.contributions(tokens, names)} if tokens else {}
    shown = [replace(table_1(name, tokens[name]), name=f"table1-{number}") for number, name in enumerate(tokens, 1)]
    return Section("Tokens: Table 1, Figure 3", drawn, shown)


def _checkpoints(
    answers: Sequence[Answers], graded: pd.DataFrame, metrics: pd.DataFrame, reference: str
) -> list[Table]:
    """pass@1 and pass@k of each checkpoint.

    They are compared with a model that no run has trained, else with the first one; pass@k, also with the reference of
    the other comparisons.
    """
    if graded.empty:
        return []
    base = base_or_first(graded)
    entropy = metrics[metrics.metric == ENTROPY].groupby(["method", "step"]).value.mean()
    references = [base, reference] if reference and reference != base else [base]
    models = graded.method.unique()
    settings = {model: [answer.settings for answer in answers if answer.model == model] for model in models}
    return [
        tables.scores_table(graded, base, entropy.to_dict()),
        *tables.many_answers_tables(graded, references),
        *tables.settings_table("table4", "Table 4: settings in which the evaluations differ", settings),
    ]


def _settings(runs: Sequence[Run], names: Sequence[str]) -> list[Table]:
    configs = {name: [run.config for run in runs if run.name == name] for name in names}
    return tables.settings_table("table5", "Table 5: settings in which the runs differ", configs)


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
