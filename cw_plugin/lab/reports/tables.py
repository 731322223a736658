"""The report's tables: differences between methods, scores of checkpoints, settings in which runs or models differ.

Numbers are text, such as ``-6.8 points [-9.1, -4.5]*``. A star means significant.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from cw_plugin.lab.evaluation import scores
from cw_plugin.lab.evaluation.scores import Checkpoint, Measure, Score
from cw_plugin.lab.intervals import ALPHA, Difference
from cw_plugin.lab.reports.comparison import OF_ACCURACY, Comparison, Outcome
from cw_plugin.lab.reports.runs import differing
from cw_plugin.lab.reports.table_formats import Table

_NOT_CORRECTED = "* p < 0.05, by a permutation test, not corrected. Intervals and tests are by question."

Row = dict[str, str | float | None]  # column -> cell


def differences_table(comparison: Comparison, notes: list[str]) -> Table:
    """A row for each outcome: the mean of each method, and its difference or ratio to the reference."""
    rows = [_differences_row(outcome, comparison) for outcome in comparison.outcomes]
    less = [f"{name} less {comparison.reference}" for name in comparison.plain if name != comparison.reference]
    frame = pd.DataFrame(rows, columns=["", *comparison.plain, *less, "seeds"])
    return Table("comparison", "Differences between the methods", frame, notes)


def _differences_row(outcome: Outcome, comparison: Comparison) -> Row:
    shown: Callable[[float], str] = "{:.3f}".format
    shown_difference: Callable[[float], str] = "{:+.3f}".format
    unit = ""
    if outcome.is_ratio:
        shown, shown_difference, unit = _exponential, _exponential, " times"
    elif outcome.name == OF_ACCURACY:
        shown, shown_difference, unit = "{:.1%}".format, _points, " points"
    seeds = [str(len(outcome.means[name])) for name in comparison.plain if name in outcome.means]
    row: Row = {"": f"{outcome.name.capitalize()}, {outcome.where}", "seeds": " and ".join(dict.fromkeys(seeds))}
    for name, of_runs in outcome.means.items():
        row[name] = shown(of_runs.mean()) if of_runs.notna().all() else "not finite"
    for name, value in outcome.differences.items():
        is_significant = (outcome.name, name) in comparison.significant
        row[f"{name} less {comparison.reference}"] = _with_interval(value, shown_difference, is_significant, unit)
    return row


def _exponential(logarithm: float) -> str:
    """The number of this logarithm with three digits."""
    return f"{math.exp(logarithm):#.3g}".rstrip(".")


def _points(share: float) -> str:
    """``+6.8`` for 0.068."""
    return f"{100 * share:+.1f}"


def _with_interval(difference: Difference, form: Callable[[float], str], is_significant: bool, unit: str = "") -> str:
    """``-6.8 points [-9.1, -4.5]*``, without brackets if there is no interval."""
    text = form(difference.value) + unit
    if not math.isnan(difference.low):
        text += f" [{form(difference.low)}, {form(difference.high)}]"
    return f"{text}*" if is_significant else text


def scores_table(graded: pd.DataFrame, reference: str, entropy: Mapping[tuple[str, int | None], float]) -> Table:
    """Tables 2 and 3: pass@1 of each checkpoint, with its policy's entropy, and the difference to a reference.

    Args:
        graded: from :func:`.scores.answers_frame`.
        reference: the model that the others are compared with.
        entropy: (method, step) -> the entropy at this step, where it is known.
    """
    rows = []
    for checkpoint in scores.checkpoints(graded, [reference]):
        row = _checkpoint_row(checkpoint)
        row["entropy"] = entropy.get((checkpoint.method, checkpoint.step), math.nan)
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
    measures = [scores.pass_at(k) for k in scores.tries(graded)]
    frame = _measured(measures, "k", graded, references)
    note = "Per cent of questions that at least one of k answers solves (Chen et al. 2021), and 95% interval."
    return Table("pass-at-k", "pass@k of checkpoints", frame, [note, _NOT_CORRECTED]) if measures else None


def solved_table(graded: pd.DataFrame, references: Sequence[str]) -> Table | None:
    """The share of questions solved by at least 1, n/8 and n/2 of n answers; arguments as :func:`pass_at_k_table`.

    Returns:
        None where there is no table of pass@k either.
    """
    most = max(scores.tries(graded), default=0)
    measures = [scores.solved_by(least, most) for least in scores.levels(most)]
    frame = _measured(measures, "at least", graded, references)
    note = "Per cent of questions, and 95% interval. One right answer may be a guess; many are not."
    notes = [note, *guesses(graded), _NOT_CORRECTED]
    return Table("solved", "Questions solved by many answers", frame, notes) if measures else None


def guesses(graded: pd.DataFrame) -> Iterator[str]:
    """A sentence for each benchmark where guessing reaches half of a checkpoint's pass@n, of n answers."""
    most = max(scores.tries(graded), default=0)
    solved = scores.checkpoints(graded, [], scores.solved_by(1, most)) if most else []
    for name in scores.benchmarks(graded):
        truths = graded[graded.benchmark == name].drop_duplicates("question").ground_truth
        shares = [checkpoint.scores[name].mean for checkpoint in solved if name in checkpoint.scores]
        if not shares or truths.isna().any():
            continue
        share = scores.guessed(truths, most)
        if share and share >= min(shares) / 2:
            strict = [least for least in scores.levels(most) if least > 1]
            by_many = [f", {_per_cent(scores.guessed(truths, most, least))}% by at least {least}" for least in strict]
            yield (
                f"{name}: {most} guesses among the answers that occur solve {_per_cent(share)}% of the questions"
                f"{''.join(by_many)}. So pass@{most} says little here; compare the questions that many answers solve."
            )


def _measured(measures: Sequence[Measure], label: str, graded: pd.DataFrame, references: Sequence[str]) -> pd.DataFrame:
    """A row for each measure, whose name stands in the column ``label``, and each checkpoint."""
    rows = []
    for measure in measures:
        for checkpoint in scores.checkpoints(graded, references, measure):
            row = _checkpoint_row(checkpoint)
            row[label] = measure.name
            for benchmark, score in checkpoint.scores.items():
                row[benchmark] = f"{_per_cent(score.mean)} {_score_interval(score)}"
            rows.append(row)
    less = [f"less {reference}" for reference in references]
    return _frame(rows, ["method", "step", label, *scores.benchmarks(graded), "average", *less])


def _checkpoint_row(checkpoint: Checkpoint) -> Row:
    """What both tables say of a checkpoint, besides its scores."""
    row: Row = {"method": checkpoint.method}
    if checkpoint.step is not None:
        row["step"] = str(checkpoint.step)
    if checkpoint.average is not None:
        row["average"] = _per_cent(checkpoint.average)
    for other, difference in checkpoint.differences.items():
        if not math.isnan(difference.value):  # else no question was asked of both
            row[f"less {other}"] = _with_interval(difference, _points, difference.p < ALPHA)
    return row


def _frame(rows: list[Row], columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns).dropna(axis="columns", how="all")


def settings_table(name: str, title: str, configs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table | None:
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


def _score_interval(score: Score) -> str:
    return f"[{_per_cent(score.low)}, {_per_cent(score.high)}]"


def _per_cent(share: float) -> str:
    """``35.0`` for 0.35."""
    return f"{100 * share:.1f}"
