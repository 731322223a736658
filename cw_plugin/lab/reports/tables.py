"""The report's tables: differences between methods, scores of checkpoints, settings in which runs or models differ.

Numbers are text, such as ``-6.8 points [-9.1, -4.5]*``. A star means significant.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from cw_plugin.lab.evaluation import scores
from cw_plugin.lab.evaluation.scores import Checkpoint, Measure
from cw_plugin.lab.intervals import ALPHA, Difference
from cw_plugin.lab.reports.comparison import OF_ACCURACY, OF_GRADIENT_NORM, Comparison, Outcome
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
    if outcome.name == OF_GRADIENT_NORM:  # as the ratio to the reference
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


def scores_table(graded: pd.DataFrame, reference: str, entropy: Mapping[tuple[str, int], float]) -> Table:
    """Tables 2 and 3: pass@1 of each checkpoint, with its policy's entropy, and the difference to a reference.

    ``graded`` is from :func:`.scores.answers_frame`; ``entropy`` is that of a (method, step), where it is known.
    """
    rows = []
    for checkpoint in scores.checkpoints(graded, [reference]):
        row = _checkpoint_row(checkpoint, has_counts=True)
        row["entropy"] = entropy.get((checkpoint.method, checkpoint.step), math.nan)
        rows.append(row)
    notes = [
        "Per cent right (right of all answers), and 95% interval. * p < 0.05, by a permutation test.",
        "Intervals and tests are by question, so they are of these checkpoints: another seed may differ.",
    ]
    frame = _scores_frame(rows, "entropy", graded, [reference])
    return Table("table2", "Tables 2 and 3: zero-shot pass@1 of checkpoints", frame, notes)


def many_answers_tables(graded: pd.DataFrame, references: Sequence[str]) -> list[Table]:
    """pass@k of each checkpoint for each k, and the questions solved by at least 1, n/8 and n/2 of n answers.

    There is no table if no question was asked several times, or an answer was graded with anything but 0 and 1.
    """
    tries = scores.tries(graded)
    if not tries:
        return []
    solved = [scores.solved_by(least, tries[-1]) for least in scores.levels(tries[-1])]
    of_k = _measured([scores.pass_at(k) for k in tries], "k", graded, references)
    of_levels = _measured(solved, "at least", graded, references)
    k_means = "Per cent of questions that at least one of k answers solves (Chen et al. 2021), and 95% interval."
    levels_mean = "Per cent of questions, and 95% interval. One right answer may be a guess; many are not."
    return [
        Table("pass-at-k", "pass@k of checkpoints", of_k, [k_means, _NOT_CORRECTED]),
        Table("solved", "Questions solved by many answers", of_levels, [levels_mean, *guesses(graded), _NOT_CORRECTED]),
    ]


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
        of_checkpoints = scores.checkpoints(graded, references, measure)
        rows += [{label: measure.name, **_checkpoint_row(checkpoint)} for checkpoint in of_checkpoints]
    return _scores_frame(rows, label, graded, references)


def _checkpoint_row(checkpoint: Checkpoint, has_counts: bool = False) -> Row:
    """What a checkpoint scores: per cent with 95% interval, and if wanted how many of how many answers are right."""
    row: Row = {"method": checkpoint.method}
    if checkpoint.step != scores.NO_STEP:
        row["step"] = str(checkpoint.step)
    if checkpoint.average is not None:
        row["average"] = _per_cent(checkpoint.average)
    for name, score in checkpoint.scores.items():
        counts = f"({score.right} of {score.answers}) " if has_counts else ""
        row[name] = f"{_per_cent(score.mean)} {counts}[{_per_cent(score.low)}, {_per_cent(score.high)}]"
    for other, difference in checkpoint.differences.items():
        if not math.isnan(difference.value):  # else no question was asked of both
            row[f"less {other}"] = _with_interval(difference, _points, difference.p < ALPHA)
    return row


def _scores_frame(rows: list[Row], label: str, graded: pd.DataFrame, references: Sequence[str]) -> pd.DataFrame:
    less = [f"less {reference}" for reference in references]
    columns = ["method", "step", label, *scores.benchmarks(graded), "average", *less]
    return pd.DataFrame(rows, columns=columns).dropna(axis="columns", how="all")


def settings_table(name: str, title: str, configs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Table]:
    """Every setting in which configurations differ, under the host's own names; no table if there is none.

    ``configs`` has the settings of each run, by dotted keys, of each method or model.
    """
    rows = []
    for key in differing([config for several in configs.values() for config in several]):
        row = {"setting": key}
        for method, several in configs.items():
            values = dict.fromkeys(str(config.get(key, "-")) for config in several)
            row[method] = ", ".join(values)
        rows.append(row)
    return [Table(name, title, pd.DataFrame(rows))] if rows else []


def _per_cent(share: float) -> str:
    """``35.0`` for 0.35."""
    return f"{100 * share:.1f}"
