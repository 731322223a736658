"""The report's tables: differences between methods, scores of checkpoints, settings in which runs or models differ."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cw_plugin.lab.reports import numbers
from cw_plugin.lab.reports.comparison import Comparison, Outcome
from cw_plugin.lab.reports.formats import Table
from cw_plugin.lab.reports.runs import differing
from cw_plugin.lab.reports.scores import Checkpoint
from cw_plugin.lab.reports.sentences import notes_of

Row = dict[str, str | float | None]  # column -> cell


def differences_table(comparison: Comparison) -> Table:
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
    return Table("comparison", "Differences between the methods", frame, notes_of(comparison))


def _less(name: str, reference: str) -> str:
    return f"{name} less {reference}"


def _means_row(outcome: Outcome, comparison: Comparison) -> Row:
    row: Row = {"": f"{outcome.name.capitalize()}, {outcome.where}", "seeds": _seeds(outcome, comparison)}
    for name in outcome.means:
        row[name] = numbers.method_mean(outcome, name)
    for name, step in outcome.broken.items():
        row[name] = f"not finite from step {step}"
    if not outcome.is_ratio:
        for name in outcome.differences:
            row[_less(name, comparison.reference)] = numbers.method_difference(outcome, name)
    return row


def _ratio_row(outcome: Outcome, comparison: Comparison) -> Row:
    reference = comparison.reference
    row: Row = {"": f"{outcome.name.capitalize()}, ratio to {reference}", "seeds": _seeds(outcome, comparison)}
    row[reference] = "1"
    for name in outcome.differences:
        row[name] = numbers.method_ratio(outcome, name)
    return row


def _seeds(outcome: Outcome, comparison: Comparison) -> str:
    """``3``, or ``3 and 2`` if methods have different numbers of runs."""
    runs = [str(outcome.seeds[name]) for name in comparison.plain if name in outcome.seeds]
    return " and ".join(dict.fromkeys(runs))


def scores_table(checkpoints: Sequence[Checkpoint], benchmarks: Sequence[str], references: Sequence[str]) -> Table:
    """pass@1 of each checkpoint, with the policy's entropy at its step, and the difference to each reference."""
    rows = []
    for checkpoint in checkpoints:
        row: Row = {"method": checkpoint.method, "step": _step(checkpoint), "entropy": checkpoint.entropy}
        for name, score in checkpoint.scores.items():
            row[name] = numbers.score_of_answers(score)
        _add_comparison(row, checkpoint)
        rows.append(row)
    columns = ["method", "step", "entropy", *benchmarks, "average", *(f"less {name}" for name in references)]
    notes = [
        "Per cent right (right of all answers), and 95% interval. * p < 0.05, by a permutation test.",
        "Intervals and tests are by question, so they are of these checkpoints: another seed may differ.",
    ]
    return Table("table2", "Tables 2 and 3: zero-shot pass@1 of checkpoints", _frame(rows, columns), notes)


def tries_table(checkpoints: Sequence[Checkpoint], benchmarks: Sequence[str], references: Sequence[str]) -> Table:
    """pass@k of each checkpoint for each k, and the difference to each reference."""
    rows = []
    for checkpoint in checkpoints:
        row: Row = {"method": checkpoint.method, "step": _step(checkpoint), "k": str(checkpoint.k)}
        for name, score in checkpoint.scores.items():
            row[name] = numbers.score(score)
        _add_comparison(row, checkpoint)
        rows.append(row)
    columns = ["method", "step", "k", *benchmarks, "average", *(f"less {name}" for name in references)]
    notes = [
        "Per cent of questions that at least one of k answers solves (Chen et al. 2021), and 95% interval.",
        "* p < 0.05, by a permutation test, not corrected. Intervals and tests are by question.",
    ]
    return Table("pass-at-k", "pass@k of checkpoints", _frame(rows, columns), notes)


def _frame(rows: list[Row], columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns).dropna(axis="columns", how="all")


def _step(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.step is None else str(checkpoint.step)


def _add_comparison(row: Row, checkpoint: Checkpoint) -> None:
    """Add the average over benchmarks, and the differences to other models."""
    if checkpoint.average is not None:
        row["average"] = numbers.per_cent(checkpoint.average)
    for other, difference in checkpoint.differences.items():
        row[f"less {other}"] = numbers.checkpoint_difference(difference, other in checkpoint.significant)


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
