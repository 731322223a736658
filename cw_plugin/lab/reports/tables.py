"""The report's tables: differences between methods, scores of checkpoints, settings in which runs or models differ.

Numbers are text, such as ``-6.8 points [-9.1, -4.5]*``. A star means significant.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cw_plugin.lab.evaluation import scores
from cw_plugin.lab.evaluation.scores import Checkpoint, Score
from cw_plugin.lab.intervals import Difference
from cw_plugin.lab.reports.comparison import OF_ACCURACY, Comparison, Outcome
from cw_plugin.lab.reports.formats import Table
from cw_plugin.lab.reports.runs import differing

Row = dict[str, str | float | None]  # column -> cell


def differences_table(comparison: Comparison, notes: Sequence[str] = ()) -> Table:
    """A row for each outcome: the mean of each method, and its difference to the reference.

    An outcome that is compared by its ratio has a second row for it.
    """
    rows = []
    for outcome in comparison.outcomes:
        rows.append(_means_row(outcome, comparison))
        if outcome.is_ratio and outcome.differences:
            rows.append(_ratio_row(outcome, comparison))
    less = [_less(name, comparison.reference) for name in comparison.others]
    frame = pd.DataFrame(rows, columns=["", *comparison.plain, *less, "seeds"])
    return Table("comparison", "Differences between the methods", frame, list(notes))


def _less(name: str, reference: str) -> str:
    return f"{name} less {reference}"


def _means_row(outcome: Outcome, comparison: Comparison) -> Row:
    row: Row = {"": f"{outcome.name.capitalize()}, {outcome.where}", "seeds": _seeds(outcome, comparison)}
    for name, of_runs in outcome.means.items():
        if outcome.is_ratio:
            row[name] = _three_digits(math.exp(of_runs.mean()))  # of the logarithm
        elif outcome.name == OF_ACCURACY:
            row[name] = f"{_per_cent(of_runs.mean())}%"
        else:
            row[name] = f"{of_runs.mean():.3f}"
    for name, step in outcome.broken.items():
        row[name] = f"not finite from step {step}"
    if not outcome.is_ratio:
        for name, difference in outcome.differences.items():
            cell = _points(difference, " points") if outcome.name == OF_ACCURACY else _decimals(difference)
            row[_less(name, comparison.reference)] = _starred(cell, name in outcome.significant)
    return row


def _ratio_row(outcome: Outcome, comparison: Comparison) -> Row:
    reference = comparison.reference
    row: Row = {"": f"{outcome.name.capitalize()}, ratio to {reference}", "seeds": _seeds(outcome, comparison)}
    row[reference] = "1"
    for name, difference in outcome.differences.items():
        value, low, high = (_three_digits(math.exp(logarithm)) for logarithm in difference[:3])
        row[name] = _starred(_with_interval(value, low, high, difference), name in outcome.significant)
    return row


def _seeds(outcome: Outcome, comparison: Comparison) -> str:
    """``3``, or ``3 and 2`` if methods have different numbers of runs."""
    runs = [str(outcome.seeds[name]) for name in comparison.plain if name in outcome.seeds]
    return " and ".join(dict.fromkeys(runs))


def scores_table(graded: pd.DataFrame, reference: str, entropy: Mapping[tuple[str, int], float]) -> Table:
    """Tables 2 and 3: pass@1 of each checkpoint, with its policy's entropy, and the difference to a reference.

    Args:
        graded: from :func:`.scores.answers_frame`.
        reference: the model that the others are compared with.
        entropy: (method, step) -> the entropy at this step, where it is known.
    """
    rows = []
    for checkpoint in scores.checkpoints(graded, [reference]):
        row = _checkpoint_row(checkpoint)
        row["entropy"] = entropy.get(checkpoint.key, math.nan)
        for name, score in checkpoint.scores.items():
            right = f"({score.right} of {score.answers})"
            row[name] = f"{_per_cent(score.mean)} {right} {_score_interval(score)}"
        rows.append(row)
    columns = ["method", "step", "entropy", *scores.benchmarks(graded), "average", f"less {reference}"]
    notes = [
        "Per cent right (right of all answers), and 95% interval. * p < 0.05, by a permutation test.",
        "Intervals and tests are by question, so they are of these checkpoints: another seed may differ.",
    ]
    return Table("table2", "Tables 2 and 3: zero-shot pass@1 of checkpoints", _frame(rows, columns), notes)


def pass_at_k_table(graded: pd.DataFrame, references: Sequence[str]) -> Table | None:
    """pass@k of each checkpoint for each k, and the difference to each reference.

    Args:
        graded: from :func:`.scores.answers_frame`.
        references: the models that the others are compared with.

    Returns:
        None if no question was asked several times, or an answer was graded with anything but 0 and 1.
    """
    rows = []
    for k in scores.tries(graded):
        for checkpoint in scores.checkpoints(graded, references, k):
            row = _checkpoint_row(checkpoint)
            row["k"] = str(k)
            for name, score in checkpoint.scores.items():
                row[name] = f"{_per_cent(score.mean)} {_score_interval(score)}"
            rows.append(row)
    if not rows:
        return None
    less = [f"less {name}" for name in references]
    columns = ["method", "step", "k", *scores.benchmarks(graded), "average", *less]
    notes = [
        "Per cent of questions that at least one of k answers solves (Chen et al. 2021), and 95% interval.",
        "* p < 0.05, by a permutation test, not corrected. Intervals and tests are by question.",
    ]
    return Table("pass-at-k", "pass@k of checkpoints", _frame(rows, columns), notes)


def _checkpoint_row(checkpoint: Checkpoint) -> Row:
    """What every table says of a checkpoint, besides its scores."""
    row: Row = {"method": checkpoint.method}
    if checkpoint.step is not None:
        row["step"] = str(checkpoint.step)
    if checkpoint.average is not None:
        row["average"] = _per_cent(checkpoint.average)
    for other, difference in checkpoint.differences.items():
        if not math.isnan(difference.value):  # else no question was asked of both
            row[f"less {other}"] = _starred(_points(difference), other in checkpoint.significant)
    return row


def _frame(rows: list[Row], columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns).dropna(axis="columns", how="all")


def settings(name: str, title: str, configs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table | None:
    """Every setting in which the configurations of methods or models differ, under the host's own names.

    Args:
        name: of the table's files.
        title: of the table.
        configs: method or model -> the settings of each of its runs, by dotted keys.

    Returns:
        None if nothing differs.
    """
    rows = []
    for key in differing([config for several in configs.values() for config in several]):
        row = {"setting": key}
        for method, several in configs.items():
            values = dict.fromkeys(str(config.get(key, "-")) for config in several)
            row[method] = ", ".join(values)
        rows.append(row)
    return Table(name, title, pd.DataFrame(rows)) if rows else None


def _points(difference: Difference, unit: str = "") -> str:
    """``-6.8 [-9.1, -4.5]``, in points."""
    value, low, high = (f"{100 * number:+.1f}" for number in difference[:3])
    return _with_interval(value + unit, low, high, difference)


def _decimals(difference: Difference) -> str:
    """``-0.052 [-0.102, -0.001]``."""
    value, low, high = (f"{number:+.3f}" for number in difference[:3])
    return _with_interval(value, low, high, difference)


def _with_interval(value: str, low: str, high: str, difference: Difference) -> str:
    """The value, with its interval if the difference has one."""
    return value if math.isnan(difference.low) else f"{value} [{low}, {high}]"


def _starred(cell: str, is_significant: bool) -> str:
    return f"{cell}*" if is_significant else cell


def _score_interval(score: Score) -> str:
    return f"[{_per_cent(score.low)}, {_per_cent(score.high)}]"


def _per_cent(share: float) -> str:
    """``35.0`` for 0.35."""
    return f"{100 * share:.1f}"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")
