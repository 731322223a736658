"""The sentences below the report's table of differences: how it was tested, and what is missing or not compared."""

from collections.abc import Iterator, Sequence

import pandas as pd

from cw_plugin.lab.reports.comparison import OF_ACCURACY, Comparison
from cw_plugin.lab.reports.runs import ACCURACY, SEED_OR_LENGTH, Run, differing, validation_sets

ENOUGH = 5  # seeds of a method
NAMED = 4  # settings in which runs differ, at most

TESTED = "Brackets: 95% interval over seeds, by a t-test: paired if both methods have the same seeds, else Welch's."
CORRECTED = "* p < 0.05, corrected for all tests of this table (Holm); an interval alone is not corrected."
ONE_RUN = "Where a method has one run, another seed may change the sign of its difference."
MORE_SEEDS = f"With fewer than {ENOUGH} seeds, only large differences are significant: train each method with more."
ONE_KIND = (
    "Whether the weights help is not shown: that needs runs of plain GRPO and of another method, with the same seeds. "
    "If a run of plain GRPO is here under another name, give it as GRPO=FOLDER."
)
BROKEN = "A method with a run that is not finite to the end of these steps is not compared."
NO_COMMON_STEP = "Accuracy is not compared: no step after the first was validated in every run."
NO_COMMON_SET = "Accuracy is not compared: the runs have no validation set in common."
NOT_ALL_ASKED = "Accuracy is not that of the evaluation: at no step did all methods answer the same benchmark."


def notes_of(comparison: Comparison, runs: Sequence[Run], metrics: pd.DataFrame) -> list[str]:
    """The notes of a comparison of runs, whose metrics are those of :func:`.runs.all_metrics`."""
    return [*_seeds(comparison), *_accuracy(comparison, runs, metrics), *_settings(runs)]


def _seeds(comparison: Comparison) -> Iterator[str]:
    if len(set(comparison.plain.values())) < 2:
        yield ONE_KIND
    compared = [(outcome, method) for outcome in comparison.outcomes for method in outcome.differences]
    if compared:
        yield TESTED
        yield CORRECTED
    runs = [min(outcome.seeds[method], outcome.seeds[comparison.reference]) for outcome, method in compared]
    if 1 in runs:
        yield ONE_RUN
    if any(number < ENOUGH for number in runs):
        yield MORE_SEEDS
    if any(outcome.broken for outcome in comparison.outcomes):
        yield BROKEN


def _accuracy(comparison: Comparison, runs: Sequence[Run], metrics: pd.DataFrame) -> Iterator[str]:
    """What is missing of the accuracy on validation."""
    common, others = validation_sets(runs)
    if others and not common:
        yield NO_COMMON_SET
    elif others:
        yield f"Accuracy on validation is that of {', '.join(common)}, which all runs have."
    was_validated = (metrics.metric == ACCURACY).any()
    is_compared = any(outcome.name == OF_ACCURACY for outcome in comparison.outcomes)
    if was_validated and not is_compared:
        yield NO_COMMON_STEP


def _settings(runs: Sequence[Run]) -> Iterator[str]:
    keys = differing([run.config for run in runs], SEED_OR_LENGTH)
    if keys:
        named = [*keys[:NAMED], "..."] if len(keys) > NAMED else keys
        yield f"The runs differ in {', '.join(named)} (Table 5)."
