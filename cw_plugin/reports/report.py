"""``cw-grpo report``: writes one page, its tables and its figures from folders of runs and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from cw_plugin.errors import DataError
from cw_plugin.files import write_whole
from cw_plugin.reports import figures, page, paper, tables
from cw_plugin.reports.comparison import compare
from cw_plugin.reports.covariance import table_1
from cw_plugin.reports.evaluations import Answers, read_answers
from cw_plugin.reports.formats import Table, listed, markdown
from cw_plugin.reports.metrics import files_in
from cw_plugin.reports.records import PATTERN, TokenRecord, read_tokens, tokens_of
from cw_plugin.reports.runs import Run, read_run, split_name
from cw_plugin.reports.tokens import write_token_page


@dataclass
class Material:
    """Everything that the given folders hold.

    Attributes:
        runs: by method, in the order given; empty for a method that was only evaluated.
        answers: of evaluations; trained: their folder -> the run whose checkpoint was asked.
        records: by method, of all its runs; pages: the folder whose tokens are shown, the first step and the last.
        notes: a sentence for each thing that is missing.
    """

    runs: dict[str, list[Run]] = field(default_factory=dict)
    answers: list[Answers] = field(default_factory=list)
    trained: dict[Path, Run] = field(default_factory=dict)
    records: dict[str, list[TokenRecord]] = field(default_factory=dict)
    pages: dict[str, tuple[Path, list[int]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def collect(arguments: Sequence[str]) -> Material:
    """Read each ``FOLDER`` or ``NAME=FOLDER``.

    Raises:
        DataError: a folder is given twice or holds nothing, or a file in it is damaged.
    """
    found, read = Material(), [(split_name(argument)[0], read_run(argument)) for argument in arguments]
    for place, (given, run) in enumerate(read):
        if run.path.resolve() in [other.path.resolve() for _, other in read[:place]]:
            raise DataError(f"{run.path} is given twice; give the folder of each run once")
        first = next(other for name, other in read if name is given and other.name == run.name)
        if given is None and tables.differing([first.config, run.config], tables.SEED_OR_LENGTH):
            run = replace(
                run, name=f"{run.name}, {'/'.join(run.path.resolve().parts[-2:])}"
            )  # called by its method, and no seed of the first
        known = bool(given or len(run.metrics))
        answers, notes = read_answers(run.path, run.name if known else None) if run.path.is_dir() else ([], [])
        recorded = bool(files_in(run.path, PATTERN))
        if not (recorded or answers or len(run.metrics)):
            raise DataError(
                f"{run.path} holds no metrics (*.jsonl of verl's file logger, trainer_state.json of TRL, TensorBoard "
                "events), no graded answers and no token records; train with trainer.logger=[console,file]"
            )
        if len(run.metrics):
            found.runs.setdefault(run.name, []).append(run)
        found.answers += answers
        found.notes += notes
        try:
            records = read_tokens(run.path) if recorded else []
        except DataError as error:
            found.notes.append(f"{run.name}: no tokens; {error}.")
            continue
        if records:
            found.records.setdefault(run.name, []).extend(records)
            steps = dict.fromkeys([records[0].step, records[-1].step])
            found.pages.setdefault(run.name, (run.path, list(steps)))
    _join(found)
    return found


def _join(found: Material) -> None:
    """Give the answers of a run's checkpoint its name, and the order of the runs."""
    of_run = {run.path.resolve(): run for runs in found.runs.values() for run in runs}
    for place, each in enumerate(found.answers):
        parents = Path(str(each.settings.get("evaluation.checkpoint", ""))).parents
        if run := next((of_run[path] for path in parents if path in of_run), None):
            found.answers[place] = replace(each, model=run.name)
            found.trained[each.file.parent] = run
    for each in found.answers:
        if each.step is not None:
            found.runs.setdefault(each.model, [])
    order = [*found.runs, *(each.model for each in found.answers)]
    found.answers.sort(key=lambda each: order.index(each.model))


def write_report(
    arguments: Sequence[str],
    out: Path,
    base: str | None = None,
    step: int | None = None,
    paper_model: str | None = None,
) -> tuple[Table, list[str], list[str]]:
    """Write ``report.html``, ``report.md``, each table as CSV and LaTeX, each figure as SVG and PDF, and a page of
    tokens for each method.

    Args:
        base: what Table 2 shows differences to; by default the model that was not trained here.
        step: which checkpoints Table 2 shows; by default the last of each.
        paper_model: add the paper's rows for this model.

    Returns:
        The table of differences, its sentences, and a sentence for each thing that is missing.

    Raises:
        DataError: as :func:`collect`; or ``out`` cannot be written.
    """
    found = collect(arguments)
    runs = [run for several in found.runs.values() for run in several]
    graded = tables.answers_frame(found.answers, found.trained)
    chosen = _chosen(graded, base, step)
    difference, sentences = compare(found.runs, *_scores(chosen))
    if text := tables.beyond_the_method([run.config for run in runs]):
        difference.notes.append(text)
    tokens = {name: tokens_of(records) for name, records in found.records.items()}
    curves, of_tokens = page.curves(found.runs), page.of_tokens(tokens, list(found.runs))
    checkpoints = [tables.table_2(chosen, chosen.name.iloc[0], paper_model)] if len(chosen) else []
    if (graded.step >= 0).any() or any(len(run.accuracy) for run in runs):
        checkpoints.append(tables.table_3(graded, runs, paper_model is not None))
    sections: list[tuple[str, list[page.Drawing], list[Any]]] = [
        ("More curves", [each for each in curves if each.name not in page.FIRST], []),
        ("Tokens: Table 1, Figure 3", of_tokens, _token_tables(found, tokens, paper_model)),
        ("Checkpoints: Tables 2 to 4" if len(chosen) else "Checkpoints: Table 3", [],
         [*checkpoints, tables.table_4(found.answers)]),
        ("Settings: Table 5", [], [tables.table_5(found.runs)]),
    ]  # fmt: skip
    sections = [(title, drawn, [table for table in several if table]) for title, drawn, several in sections]
    shown = [difference, *(table for _, _, several in sections for table in several)]
    title = listed(list(found.runs)) or "Report"
    links = {
        f"tokens-{number}.html": f"Tokens of {name}, step{'s' * (len(steps) > 1)} {listed(list(map(str, steps)))}"
        for number, (name, (_, steps)) in enumerate(found.pages.items(), 1)
    }
    try:
        for table in shown:
            write_whole(out / f"{table.name}.csv", table.csv())
            write_whole(out / f"{table.name}.tex", table.latex())
        for each in (*curves, *of_tokens):
            figures.save(each.figure, out / each.name)
        for file, (name, (folder, steps)) in zip(links, found.pages.items(), strict=True):
            write_token_page(f"{name}={folder}", out / file, steps)  # of all steps it could be very large
        text = page.render(
            found.runs,
            title=title,
            first=[each for each in curves if each.name in page.FIRST],
            sentences=[*sentences, *found.notes],
            comparison=difference,
            links=links,
            sections=[section for section in sections if section[1] or section[2]],
            files=[f"{table.name}.{kind}" for table in shown for kind in ("csv", "tex")]
            + [f"{each.name}.{kind}" for each in (*curves, *of_tokens) for kind in ("svg", "pdf")],
        )
        write_whole(out / "report.html", text)
        told = [f"# {markdown(title)}", "", *map(markdown, [*sentences, *found.notes]), ""]
        write_whole(out / "report.md", "\n".join([*told, *(table.markdown() for table in shown)]))
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}); give another folder with --out") from None
    return difference, sentences, found.notes


def _chosen(graded: pd.DataFrame, base: str | None, step: int | None) -> pd.DataFrame:
    """The answers of Table 2, those of the base first."""
    if len(graded) and step is not None and step not in set(graded.step):
        known = ", ".join(str(each) for each in graded.step.unique() if each >= 0)
        raise DataError(f"nothing was evaluated at step {step}; there are answers at {known or 'no step'}")
    chosen = tables.at_step(graded, step)
    names = list(chosen.name.unique())
    if base is not None and len(chosen) and base not in names:
        raise DataError(f"there is no evaluation named {base}; --base is one of {', '.join(names)}")
    first = chosen.name != base if base is not None else chosen.step >= 0
    return chosen.iloc[first.argsort(kind="stable")]


def _scores(chosen: pd.DataFrame) -> tuple[dict[str, pd.Series] | None, str]:
    """Of each method that was trained the accuracy of each run by seed, and what it is of."""
    trained = chosen[chosen.step >= 0]
    if trained.empty:
        return None, ""
    of_run = trained.groupby(["name", "run", "seed", "benchmark"], sort=False, dropna=False).acc.mean()
    means = of_run.groupby(["name", "seed", "run"], sort=False, dropna=False).mean().droplevel("run")
    asked = ", ".join(map(tables.shown_benchmark, tables.benchmarks_of(trained)))
    return {name: means.loc[name] for name in trained.name.unique()}, asked


def _token_tables(found: Material, tokens: dict[str, pd.DataFrame], paper_model: str | None) -> list[Table]:
    shown = []
    for number, (name, records) in enumerate(found.records.items(), 1):
        models = [str(run.model) for run in found.runs.get(name, [])]
        reported = paper_model is not None or any(model.endswith(paper.TABLE_1_MODEL) for model in models)
        steps = ", ".join(str(step) for step in sorted({record.step for record in records}))
        shown.append(replace(table_1(f"{name}, step {steps}", tokens[name], reported), name=f"table1-{number}"))
    return shown
