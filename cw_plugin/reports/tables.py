"""The report's tables: differences between methods, scores of checkpoints, settings in which runs or models differ."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cw_plugin.configs import differences
from cw_plugin.reports.comparison import ACCURACY, Comparison, Outcome
from cw_plugin.reports.formats import Table, listed
from cw_plugin.reports.intervals import Difference
from cw_plugin.reports.scores import Checkpoint, Score

# Where a run is written, which says nothing of what it is; and what makes two runs seeds of one method.
_WRITTEN = ("*_dir", "trainer.experiment_name", "trainer.project_name", "*run_name", "ray_kwargs", "hydra", "hub_*",
            "trainer.export_path", "trainer.ckpt_path", "trainer.log_path")  # fmt: skip
SEED_OR_LENGTH = ("*seed", "trainer.total_*", "trainer.*_freq", "trainer.*_interval", "*.total_training_steps",
                  "*max_training_steps", "max_steps", "num_train_epochs")  # fmt: skip


def differences_table(comparison: Comparison) -> Table:
    """A row for each outcome: the mean of each method, and its difference to the reference. One that is compared by its
    ratio has a second row for it."""
    rows = []
    for outcome in comparison.outcomes:
        rows.append(_means_row(outcome, comparison))
        if outcome.is_ratio and outcome.differences:
            rows.append(_ratio_row(outcome, comparison))
    columns = ["", *comparison.plain, *(_less(name, comparison) for name in comparison.others), "seeds"]
    frame = pd.DataFrame(rows, columns=columns)
    return Table("comparison", "Differences between the methods", frame, _notes(comparison))


def _less(name: str, comparison: Comparison) -> str:
    return f"{name} less {comparison.reference}"


def _means_row(outcome: Outcome, comparison: Comparison) -> dict[str, str]:
    row = {"": f"{outcome.name.capitalize()}, {outcome.where}", "seeds": _seeds(outcome, comparison)}
    for name, means in outcome.means.items():
        row[name] = _mean(outcome, means.mean())
    for name, step in outcome.broken.items():
        row[name] = f"not finite from step {step}"
    if not outcome.is_ratio:
        for name, difference in outcome.differences.items():
            row[_less(name, comparison)] = _difference(outcome, difference) + _star(outcome, name)
    return row


def _ratio_row(outcome: Outcome, comparison: Comparison) -> dict[str, str]:
    row = {"": f"{outcome.name.capitalize()}, ratio to {comparison.reference}", "seeds": _seeds(outcome, comparison)}
    row[comparison.reference] = "1"
    for name, difference in outcome.differences.items():
        low_high = [_three_digits(math.exp(end)) for end in (difference.low, difference.high)]
        interval = f" [{', '.join(low_high)}]" if _has_interval(difference) else ""
        row[name] = _three_digits(math.exp(difference.value)) + interval + _star(outcome, name)
    return row


def _seeds(outcome: Outcome, comparison: Comparison) -> str:
    """``3``, or ``3 and 2`` if methods have different numbers of runs."""
    numbers = [str(outcome.seeds[name]) for name in comparison.plain if name in outcome.seeds]
    return " and ".join(dict.fromkeys(numbers))


def _mean(outcome: Outcome, value: float) -> str:
    if outcome.is_ratio:
        return _three_digits(math.exp(value))  # of the logarithm
    return f"{100 * value:.1f}%" if outcome.name == ACCURACY else f"{value:.3f}"


def _difference(outcome: Outcome, found: Difference) -> str:
    def signed(value: float) -> str:
        return f"{100 * value:+.1f}" if outcome.name == ACCURACY else f"{value:+.3f}"

    unit = " points" if outcome.name == ACCURACY else ""
    interval = f" [{signed(found.low)}, {signed(found.high)}]" if _has_interval(found) else ""
    return f"{signed(found.value)}{unit}{interval}"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def _has_interval(found: Difference) -> bool:
    return not math.isnan(found.low)


def _star(outcome: Outcome, name: str) -> str:
    return "*" if name in outcome.significant else ""


def _notes(comparison: Comparison) -> list[str]:
    notes = []
    if comparison.tests:
        notes += [
            "Brackets: 95% interval over seeds, by a t-test: paired if both methods have the same seeds, else Welch's.",
            f"* p < 0.05, corrected for {_tests(comparison.tests)} (Holm); an interval alone is not corrected.",
        ]
    if comparison.validated:
        last = [f"{step} of {name}" for name, step in comparison.validated.items() if step is not None]
        without = [name for name, step in comparison.validated.items() if step is None]
        missing = f"; {listed(without)} has none" if without else ""
        notes.append(f"Accuracy is not compared: no step was validated in every run. Last: {listed(last)}{missing}.")
    if any(outcome.broken for outcome in comparison.outcomes):
        notes.append("A method with a run that is not finite to the end of these steps is not compared.")
    return notes


def _tests(number: int) -> str:
    return "1 test" if number == 1 else f"{number} tests"


def scores_table(checkpoints: Sequence[Checkpoint], benchmarks: Sequence[str], references: Sequence[str]) -> Table:
    """pass@1 of each checkpoint, with the policy's entropy at its step, and the difference to each reference."""
    rows = []
    for each in checkpoints:
        scores = {name: _right_of_all(score) for name, score in each.scores.items()}
        entropy = None if math.isnan(each.entropy) else each.entropy
        rows.append({"method": each.method, "step": _step(each), "entropy": entropy, **scores, **_together(each)})
    columns = ["method", "step", "entropy", *benchmarks, "average", *(f"less {name}" for name in references)]
    return Table("table2", "Tables 2 and 3: zero-shot pass@1 of checkpoints", _frame(rows, columns), [
        "Per cent right (right of all answers), and 95% interval. * p < 0.05, by a permutation test.",
        "Intervals and tests are by question, so they are of these checkpoints: another seed may differ.",
    ])  # fmt: skip


def tries_table(checkpoints: Sequence[Checkpoint], benchmarks: Sequence[str], references: Sequence[str]) -> Table:
    """pass@k of each checkpoint for each k, and the difference to each reference."""
    rows = []
    for each in checkpoints:
        scores = {name: _interval(score) for name, score in each.scores.items()}
        rows.append({"method": each.method, "step": _step(each), "k": str(each.k), **scores, **_together(each)})
    columns = ["method", "step", "k", *benchmarks, "average", *(f"less {name}" for name in references)]
    return Table("pass-at-k", "pass@k of checkpoints", _frame(rows, columns), [
        "Per cent of questions that at least one of k answers solves (Chen et al. 2021), and 95% interval.",
        "* p < 0.05, by a permutation test, not corrected. Intervals and tests are by question.",
    ])  # fmt: skip


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns).dropna(axis="columns", how="all")


def _step(checkpoint: Checkpoint) -> str | None:
    return None if checkpoint.step is None else str(checkpoint.step)


def _together(checkpoint: Checkpoint) -> dict[str, str | None]:
    """The average over benchmarks, and the differences to other models."""
    average = None if checkpoint.average is None else f"{100 * checkpoint.average:.1f}"
    return {"average": average} | {
        f"less {other}": _less_text(found) for other, found in checkpoint.differences.items()
    }


def _less_text(found: Difference) -> str | None:
    if math.isnan(found.value):
        return None
    interval = f" [{100 * found.low:+.1f}, {100 * found.high:+.1f}]" if _has_interval(found) else ""
    star = "*" if found.p < 0.05 else ""
    return f"{100 * found.value:+.1f}{interval}{star}"


def _right_of_all(score: Score) -> str:
    return f"{100 * score.mean:.1f} ({score.right} of {score.answers}) [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def _interval(score: Score) -> str:
    return f"{100 * score.mean:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"


def settings(name: str, title: str, configs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Table]:
    """Every setting in which the configurations of methods or models differ, under the host's own names; no table if
    there is none."""
    rows = []
    for key in differing([config for several in configs.values() for config in several]):
        row = {"setting": key}
        for method, several in configs.items():
            values = dict.fromkeys(str(config.get(key, "-")) for config in several)
            row[method] = ", ".join(values)
        rows.append(row)
    return [Table(name, title, pd.DataFrame(rows))] if rows else []


def differing(configs: Sequence[Mapping[str, Any]], ignored: Sequence[str] = ()) -> list[str]:
    """Keys of the settings in which configurations differ, besides where a run is written. Empty ones are left out."""
    first, *others = [config for config in configs if config] or [{}]
    return list(dict.fromkeys(key for each in others for key in differences(first, each, (*_WRITTEN, *ignored))))
