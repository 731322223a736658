"""The paper's Tables 2 to 5 for your own runs and evaluations."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cw_plugin.reports import paper
from cw_plugin.reports.evaluations import BENCHMARKS, Answers
from cw_plugin.reports.formats import Table
from cw_plugin.reports.intervals import over_questions, pass_at_1
from cw_plugin.reports.metrics import ENTROPY
from cw_plugin.reports.runs import Run
from cw_plugin.settings import differences

# Where a run is written, which says nothing of what it is; and what makes two methods, seeds of one, or a longer run.
_WRITTEN = ("*_dir", "trainer.experiment_name", "trainer.project_name", "run_name", "ray_kwargs", "hydra", "hub_*")
METHOD = ("algorithm.adv_estimator", "algorithm.cw_grpo", "*.policy_loss", "*.clip_ratio_*", "cw_*")
SEED_OR_LENGTH = (
    "*seed",
    "trainer.total_*",
    "trainer.*_freq",
    "*.total_training_steps",
    "max_steps",
    "num_train_epochs",
)
# Shown also where all have the same.
_OF_RUNS = ("actor_rollout_ref.model.path", "algorithm.adv_estimator", "algorithm.cw_grpo.kernel", "model", "cw_kernel",
            *paper.TABLE_5)  # fmt: skip
_OF_ANSWERS = ("evaluation.checkpoint", "evaluation.samples", "actor_rollout_ref.rollout.val_kwargs.temperature",
               "actor_rollout_ref.rollout.val_kwargs.top_p", "data.max_response_length")  # fmt: skip

_COLUMNS = ["name", "step", "run", "seed", "benchmark", "question", "acc", "samples"]


def answers_frame(answers: Sequence[Answers], trained: Mapping[Path, Run]) -> pd.DataFrame:
    """A row for each question that a model was asked; step is -1 without one, run is the folder of the answers.

    Args:
        trained: folder of answers -> the run whose checkpoint gave them, and whose seed is theirs.
    """
    rows = []
    for each in answers:
        run, step = trained.get(each.file.parent), -1 if each.step is None else each.step
        of_all = (each.model, step, str(each.file.parent), run.seed if run else math.nan, each.benchmark)
        rows += [(*of_all, question, acc, each.samples) for question, acc in each.accuracy.items()]
    return pd.DataFrame(rows, columns=_COLUMNS)


def at_step(answers: pd.DataFrame, step: int | None = None) -> pd.DataFrame:
    """Of each model the answers at ``step``, or at its last; of a model that was not trained, its only ones."""
    wanted = [-1, step] if step is not None else answers.groupby("name").step.transform("max")
    return answers[answers.step.isin(wanted) if step is not None else answers.step == wanted]


def benchmarks_of(answers: pd.DataFrame) -> list[str]:
    """Those that were asked; the paper's come first, in its order."""
    asked = set(answers.benchmark)
    return [*(name for name in BENCHMARKS if name in asked), *sorted(asked - set(BENCHMARKS))]


def shown_benchmark(benchmark: str) -> str:
    return BENCHMARKS.get(benchmark, benchmark)


def _by_question(answers: pd.DataFrame) -> dict[str, pd.Series]:
    """Benchmark -> the mean accuracy of each question; over seeds, if several have one name."""
    return {name: group.groupby("question").acc.mean() for name, group in answers.groupby("benchmark")}


def table_2(answers: pd.DataFrame, base: str, paper_model: str | None = None) -> Table:
    """pass@1 of each method on each benchmark, the average, and the difference to ``base``."""
    columns, theirs = benchmarks_of(answers), _by_question(answers[answers.name == base])
    rows = []
    for (name, step), of_name in answers.groupby(["name", "step"], sort=False):
        ours = _by_question(of_name)
        cells = [
            _score(of_name[of_name.benchmark == column], ours[column]) if column in ours else None for column in columns
        ]
        mean = f"{100 * sum(each.mean() for each in ours.values()) / len(columns):.1f}" if all(cells) else None
        both = name != base and theirs.keys() == ours.keys() == set(columns)
        difference = _difference([ours[c] for c in columns], [theirs[c] for c in columns]) if both else None
        rows.append([f"{name}, step {step}" if step >= 0 else name, *cells, mean, difference])
    for model, methods in paper.TABLE_2.items():
        if paper_model in (model, "all") and set(columns) <= set(methods["base"]):
            of_paper = pd.DataFrame(methods).loc[columns]
            for name, mean in of_paper.mean().items():
                label = f"{model if name == 'base' else name} (reported)"
                difference = f"{mean - of_paper['base'].mean():+.1f}" if name != "base" else None
                rows.append([label, *(f"{value:.1f}" for value in of_paper[name]), f"{mean:.1f}", difference])
    header = ["method", *map(shown_benchmark, columns), "average", f"less {base}"]
    notes = [
        "Per cent right (right of all answers), and 95% interval. * p < 0.05, by a permutation test.",
        "Intervals and tests are by question, so they are of these checkpoints: another seed may differ.",
    ]
    return Table("table2", "Table 2: zero-shot pass@1", pd.DataFrame(rows, columns=header), notes)


def _score(asked: pd.DataFrame, means: pd.Series) -> str:
    mean, low, high = pass_at_1(means)
    right = round((asked.acc * asked.samples).sum())
    return f"{100 * mean:.1f} ({right} of {asked.samples.sum()}) [{100 * low:.1f}, {100 * high:.1f}]"


def _difference(ours: Sequence[pd.Series], theirs: Sequence[pd.Series]) -> str | None:
    found = over_questions(ours, theirs)
    interval = f" [{100 * found.low:+.1f}, {100 * found.high:+.1f}]" if found.low == found.low else ""
    return f"{100 * found.value:+.1f}{interval}{'*' * (found.p < 0.05)}" if found.value == found.value else None


def table_3(answers: pd.DataFrame, runs: Sequence[Run], paper_rows: bool = False) -> Table:
    """Every checkpoint that was evaluated or validated: pass@1, and the policy's entropy at that step."""
    trained = answers[answers.step >= 0]
    columns = benchmarks_of(trained)
    cells: dict[tuple[Any, Any], dict[str, Any]] = {}
    for (name, step), of_step in trained.groupby(["name", "step"], sort=False):
        cells[name, step] = {c: 100 * means.mean() for c, means in _by_question(of_step).items()}
    for name in dict.fromkeys(run.name for run in runs):
        several = [run for run in runs if run.name == name]
        for what, series in (
            ("validation", [r.accuracy * 100 for r in several]),
            ("entropy", [r.series(ENTROPY) for r in several]),
        ):
            for step, value in pd.concat(series, axis=1).mean(axis=1).items():
                if what == "validation" or (name, step) in cells:
                    cells.setdefault((name, step), {})[what] = value
    if paper_rows and {"math500", "olympiadbench"} <= set(columns):
        for name, step, entropy, math500, olympiad in paper.TABLE_3:
            given = {"entropy": entropy or None, "math500": math500, "olympiadbench": olympiad}
            cells[f"{name} (reported)", step] = given
    order = list(dict.fromkeys(name for name, _ in cells))
    rows = sorted(cells, key=lambda place: (order.index(place[0]), place[1]))
    frame = pd.DataFrame([{"method": name, "step": step} | cells[name, step] for name, step in rows])
    shown = [c for c in ("method", "step", "entropy", "validation", *columns) if c in frame]
    for column in shown[2:]:
        digits = 3 if column == "entropy" else 1
        frame[column] = [f"{v:.{digits}f}" if isinstance(v, float) and v == v else v for v in frame[column]]
    frame = frame[shown].rename(columns=shown_benchmark)
    return Table("table3", "Table 3: checkpoints, and the entropy there", frame, ["pass@1 in per cent."])


def table_4(answers: Sequence[Answers]) -> Table | None:
    """How the models were asked."""
    asked: dict[str, list[Mapping[str, Any]]] = {}
    for each in answers:
        asked.setdefault(each.model, []).append(each.settings)
    return settings(Table("table4", "Table 4: how the models were asked", pd.DataFrame()), asked, _OF_ANSWERS)


def table_5(runs: Mapping[str, Sequence[Run]]) -> Table | None:
    """The paper's hyperparameters, and every setting in which runs differ."""
    empty = Table("table5", "Table 5: settings of the paper, and those in which runs differ", pd.DataFrame())
    return settings(
        empty, {name: [run.config for run in several] for name, several in runs.items() if several}, _OF_RUNS
    )


def settings(table: Table, of_names: Mapping[str, Sequence[Mapping[str, Any]]], always: Sequence[str]) -> Table | None:
    """Fill a table with the settings in which configurations differ, and those ``always`` shown, under their host's own
    names; None if there are none."""
    every = [config for several in of_names.values() for config in several]
    known = {key for config in every for key in config}
    cells = [
        {"setting": key}
        | {
            name: ", ".join(dict.fromkeys(_shown(each.get(key)) for each in several))
            for name, several in of_names.items()
        }
        | ({"paper (reported)": paper.TABLE_5.get(key)} if always is _OF_RUNS else {})
        for key in dict.fromkeys([*(key for key in always if key in known), *differing(every)])
    ]
    return Table(table.name, table.title, pd.DataFrame(cells)) if cells else None


def differing(configs: Sequence[Mapping[str, Any]], ignored: Sequence[str] = ()) -> list[str]:
    """Keys of the settings in which configurations of one host differ, besides where a run is written."""
    keys: dict[str, None] = {}
    for of_host in ([c for c in configs if c and ("cw_kernel" in c) == trl] for trl in (True, False)):
        for config in of_host[1:]:
            keys |= dict.fromkeys(differences(dict(of_host[0]), dict(config), (*_WRITTEN, *ignored)))
    return list(keys)


def beyond_the_method(configs: Sequence[Mapping[str, Any]]) -> str | None:
    """A sentence about what methods differ in besides the method, the seed and the length."""
    keys = differing(configs, (*METHOD, *SEED_OR_LENGTH))
    more = f" and {len(keys) - 2} more settings" if len(keys) > 2 else ""
    return f"The runs differ in {', '.join(keys[:2])}{more}, too (Table 5): the method is not alone." if keys else None


def _shown(value: Any) -> str:
    text = "-" if value is None else str(value)
    if text.count("/") > 1 and " " not in text:  # a path: more of it pushes the values off a narrow page
        text = ".../" + "/".join(text.rstrip("/").split("/")[-2:])
    return textwrap.shorten(text, 60, placeholder=" ...") if " " in text else text
