"""``cw-grpo report``: writes one page, its tables and its figures from folders of runs and evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader
from matplotlib.figure import Figure

from cw_plugin.errors import DataError
from cw_plugin.evaluation.answers import Answers, read_answers
from cw_plugin.files import files_in, split_name, write_whole
from cw_plugin.records.read import PATTERN, TokenRecord, read_tokens, tokens_of
from cw_plugin.reports import figures, tables
from cw_plugin.reports import scores as numbers
from cw_plugin.reports.comparison import compare
from cw_plugin.reports.covariance import table_1
from cw_plugin.reports.formats import Table, csv, listed
from cw_plugin.reports.runs import ENTROPY, NORM, REWARD, Run, all_metrics, read_run
from cw_plugin.reports.sentences import restarts, sentences
from cw_plugin.reports.tokens import write_token_page

# The name of its files -> metric, title, caption.
CURVES = {
    "reward": (REWARD, "Reward", ""),
    "accuracy": ("accuracy", "Accuracy on validation",
                 "Runs that start from the same model differ at step 0 by chance alone."),
    "entropy": (ENTROPY, "Policy entropy, nats", ""),
    "grad-norm": (NORM, "Gradient norm, before clipping", ""),
    "gradient-share": ("cw_grpo/extreme_gradient_share", "Squared gradient of extreme tokens",
                       "Extreme tokens have a Gaussian kernel w below 0.5. Plain GRPO leaves them their weight."),
    "balance": ("cw_grpo/extreme_balance", "Balance of extreme tokens, Σc / Σ|c|",
                "Near 0, they occur about as often in good as in bad responses, as noise does."),
    "downweighted": ("cw_grpo/downweighted_share", "Tokens with kernel w below 0.5", ""),
    "covariance": ("cw_grpo/covariance_before", "Cov(log π, A) before the weights",
                   "Where it is positive, theory says that entropy falls. Only the sign means something."),
    "covariance-after": ("cw_grpo/covariance_after", "Cov(log π, A) after the weights", ""),
    "length": ("response_length/mean", "Response length, tokens", ""),
}  # fmt: skip
FIRST = ("reward", "accuracy", "entropy", "grad-norm")  # above the fold
EXTREMES = "How much of the sum of c the most extreme tokens of either side hold: the paper's Figure 3."
_SHARES = ("accuracy", "gradient-share", "downweighted")
_NO_METRICS = "no metrics (*.jsonl of verl's file logger, trainer_state.json of TRL, TensorBoard events)"
_KEEP_THEM = "train with trainer.logger=[console,file] in verl; call trainer.save_state() after training in TRL"

Drawing = tuple[Figure, str]  # with its caption
Records = dict[str, dict[Path, list[TokenRecord]]]  # method -> folder -> records


@dataclass(frozen=True)
class Section:
    """A part of the page: figures by the name of their files, then tables. One with a title is folded."""

    title: str
    drawings: dict[str, Drawing] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)


def collect(arguments: Sequence[str]) -> tuple[list[Run], list[Answers], Records, list[str]]:
    """Read each ``FOLDER`` or ``NAME=FOLDER``; a DataError if one is given twice, holds nothing or is damaged, or if
    none has metrics or graded answers.

    Returns:
        The runs that have metrics; the answers of evaluations, those of a run's checkpoint with its name and seed;
        the token records; and a sentence for each thing that is missing, and for each run with repeated steps.
    """
    read: dict[Path, Run] = {}
    answers: list[Answers] = []
    records: Records = {}
    notes: list[str] = []
    for argument in arguments:
        run, unnamed = read_run(argument), split_name(argument)[0] is None
        path, logged, recorded = run.path.resolve(), len(run.metrics) > 0, files_in(run.path, PATTERN)
        if path in read:
            raise DataError(f"{run.path} is given twice; give the folder of each run once")
        namesake = next((other for other in read.values() if other.name == run.name), run)
        if unnamed and tables.differing([namesake.config, run.config], tables.SEED_OR_LENGTH):
            run = replace(run, name=f"{run.name}, {'/'.join(path.parts[-2:])}")  # no seed of the first one
        read[path] = run
        graded, unfinished = read_answers(run.path, None if unnamed and not logged else run.name)
        if not (logged or recorded or graded):
            raise DataError(f"{run.path} holds {_NO_METRICS}, no graded answers and no token records; {_KEEP_THEM}")
        if not (logged or graded):
            notes.append(f"{run.path} holds {_NO_METRICS}; {_KEEP_THEM}.")
        notes += unfinished
        answers += graded
        if recorded:
            try:
                records.setdefault(run.name, {})[run.path] = read_tokens(run.path)
            except DataError as error:
                notes.append(f"{run.name}: no tokens; {error}.")
    runs = [run for run in read.values() if len(run.metrics)]
    if not runs and not answers:
        folders = ", ".join(str(run.path) for run in read.values())
        raise DataError(
            f"{folders}: token records alone, and {_NO_METRICS}; {_KEEP_THEM}; cw-grpo tokens shows records"
        )
    for place, each in enumerate(answers):
        parents = Path(str(each.settings.get("evaluation.checkpoint", ""))).parents
        for run in [read[path] for path in parents if path in read]:
            answers[place] = replace(each, model=run.name, seed=run.seed)
    order = [run.name for run in read.values()]
    answers.sort(key=lambda each: order.index(each.model) if each.model in order else len(order))
    return runs, answers, records, [*restarts(runs), *notes]


def write_report(arguments: Sequence[str], out: Path) -> tuple[Table, list[str], list[str]]:
    """Write ``report.html``, each table as CSV and LaTeX, each figure as SVG and PDF, every metric as ``metrics.csv``,
    and a page of tokens for each method. What :func:`collect` refuses, or an ``out`` that cannot be written, is a
    DataError.

    Returns:
        The table of differences, its sentences, and a sentence for each thing that is missing.
    """
    runs, answers, records, notes = collect(arguments)
    metrics, graded = all_metrics(runs), numbers.answers_frame(answers)
    names = list(dict.fromkeys([*metrics.method, *graded.method[graded.step >= 0]]))
    plain = {name: name == "GRPO" or {run.is_grpo for run in runs if run.name == name} == {True} for name in names}
    comparison = compare(metrics, plain, numbers.last_scores(graded))
    said, difference = sentences(comparison), tables.differences_table(comparison)
    if keys := tables.differing([run.config for run in runs], tables.SEED_OR_LENGTH):
        more = f" and {len(keys) - 4} more settings" if len(keys) > 4 else ""
        difference.notes.append(f"The runs differ in {', '.join(keys[:4])}{more} (Table 5).")
    tokens = {name: tokens_of([*chain(*by_folder.values())]) for name, by_folder in records.items()}
    sections = [
        _overview(metrics, names, difference),
        Section("More curves", _curves(metrics, names, [name for name in CURVES if name not in FIRST])),
        _tokens(tokens, names),
        _checkpoints(answers, graded, metrics, comparison.reference),
        _settings(runs, names),
    ]
    files = {"metrics.csv": csv(metrics)}
    for table in chain(*(section.tables for section in sections)):
        files |= {f"{table.name}.csv": table.csv(), f"{table.name}.tex": table.latex()}
    pages = {f"tokens-{number}.html": name for number, name in enumerate(records, 1)}
    environment = Environment(loader=PackageLoader("cw_plugin.reports", "."), autoescape=True)
    environment.filters["svg"] = lambda name: "<svg" + (out / f"{name}.svg").read_text("utf-8").split("<svg", 1)[1]
    try:
        saved = []
        for section in sections:
            for name, (figure, _) in section.drawings.items():
                saved += [file.name for file in figures.save(figure, out / name)]
        for file, name in pages.items():
            folder, found = next(iter(records[name].items()))
            write_token_page(f"{name}={folder}", out / file, [found[0].step, found[-1].step])  # of all it is large
        files["report.html"] = environment.get_template("report.html.j2").render(
            title=listed(names) or "Report", runs=runs, said=[*said, *notes], sections=sections, pages=pages,
            files=[*files, *saved],
        )  # fmt: skip
        for file, text in files.items():
            write_whole(out / file, text)
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}); give another folder with --out") from None
    return difference, said, notes


def _overview(metrics: pd.DataFrame, names: Sequence[str], difference: Table) -> Section:
    return Section("", _curves(metrics, names, FIRST), [difference])


def _tokens(tokens: dict[str, pd.DataFrame], names: Sequence[str]) -> Section:
    drawings = {"contributions": (figures.contributions(tokens, names), EXTREMES)} if tokens else {}
    table_1s = [replace(table_1(name, tokens[name]), name=f"table1-{n}") for n, name in enumerate(tokens, 1)]
    return Section("Tokens: Table 1, Figure 3", drawings, table_1s)


def _checkpoints(answers: Sequence[Answers], graded: pd.DataFrame, metrics: pd.DataFrame, reference: str) -> Section:
    """pass@1, compared with the model that was not trained, else with the first one; pass@k, also with the reference of
    the other comparisons."""
    if graded.empty:
        return Section("")
    untrained = list(graded.method[graded.step < 0])
    base = [*untrained, *graded.method][0]
    asked = {each.model: [other.settings for other in answers if other.model == each.model] for each in answers}
    names = numbers.benchmarks(graded)
    shown = [tables.scores_table(numbers.checkpoints(graded, metrics, [base]), names, [base])]
    references = list(dict.fromkeys([base, reference] if reference else [base]))
    found = [each for k in numbers.tries(graded) for each in numbers.checkpoints(graded, metrics, references, k)]
    if found:
        shown.append(tables.tries_table(found, names, references))
    shown += tables.settings("table4", "Table 4: settings in which the evaluations differ", asked)
    return Section("Checkpoints: Tables 2 to 4", {}, shown)


def _settings(runs: Sequence[Run], names: Sequence[str]) -> Section:
    configs = {name: [run.config for run in runs if run.name == name] for name in names}
    return Section(
        "Settings: Table 5", {}, tables.settings("table5", "Table 5: settings in which the runs differ", configs)
    )


def _curves(metrics: pd.DataFrame, names: Sequence[str], which: Sequence[str]) -> dict[str, Drawing]:
    """A figure for each of these metrics that was logged."""
    drawn = {}
    for name in which:
        metric, title, caption = CURVES[name]
        logged = metrics[metrics.metric == metric]
        if logged.empty:
            continue
        window = 1 if name == "accuracy" else max(1, logged.groupby("run").size().max() // 20)
        series = {
            method: [run.set_index("step").value for _, run in logged[logged.method == method].groupby("run")]
            for method in names
        }
        means = f" Means of {window} steps." if window > 1 else ""
        drawn[name] = figures.curves(series, title, "", window, name in _SHARES), caption + means
    return drawn
