"""The report's sentences: the answer above its figures, and below its table how it was tested and what is missing."""

import math
from collections.abc import Iterator, Sequence

from cw_plugin.lab.reports.comparison import OF_ACCURACY, OF_REWARD, OF_VALIDATION, Comparison
from cw_plugin.lab.reports.runs import SEED_OR_LENGTH, Run, differing, validation_of

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
ONE_ANSWER = (
    "Accuracy counts one answer to each problem. If many answers matter, ask each question several times with cw-grpo "
    "evaluate, and compare the questions that many answers solve. pass@k alone may count guesses."
)
BROKEN = "A method with a run that is not finite at the last of these steps is not compared."
NO_ACCURACY = "Accuracy is not compared: at no step after the first do all runs have one on the same validation set."
NOT_ALL_ASKED = "Accuracy is not that of the evaluation: at no step did all methods answer the same benchmark."


def answers_of(comparison: Comparison) -> Iterator[str]:
    """Which method ended better, by how much, and whether this is more than chance: in accuracy, else in reward."""
    by_name = {outcome.name: outcome for outcome in comparison.outcomes}
    outcome = by_name.get(OF_ACCURACY) or by_name.get(OF_VALIDATION) or by_name.get(OF_REWARD)
    if outcome is None:
        return
    scale, digits, unit = (100, 1, " points") if outcome.name == OF_ACCURACY else (1, 3, "")
    for method, difference in outcome.differences.items():
        size, *ends = (f"{abs(value) * scale:.{digits}f}" for value in difference[:3])
        if math.isnan(difference.p):
            chance = "One cannot tell whether this is chance: train each method with more seeds."
        elif (outcome.name, method) in comparison.significant:
            chance = f"This is more than chance (95% interval {' to '.join(sorted(ends, key=float))})."
        else:
            chance = "This may be chance."
        if float(size) == 0:
            yield f"{method} and {comparison.reference} ended with the same {outcome.name} ({outcome.where}). {chance}"
        else:
            side = f"{'above' if difference.value > 0 else 'below'} {comparison.reference}"
            yield f"{method} ended {size}{unit} of {outcome.name} {side} ({outcome.where}). {chance}"


def notes_of(comparison: Comparison, runs: Sequence[Run]) -> Iterator[str]:
    """The notes of a comparison of runs."""
    yield from _of_seeds(comparison)
    validation = validation_of(runs)
    which = ", ".join(validation.sets)
    if validation.sets and validation.measure != "acc":
        yield f"Validation is compared by its {validation.measure} on {which}: not all runs have an accuracy (acc)."
    elif validation.sets and validation.others:
        yield f"Accuracy on validation is that of {which}, which all runs have."
    compared = {outcome.name for outcome in comparison.outcomes}
    if (validation.sets or validation.others) and compared.isdisjoint((OF_ACCURACY, OF_VALIDATION)):
        yield NO_ACCURACY
    if OF_ACCURACY in compared and len(set(comparison.plain.values())) == 2:
        yield ONE_ANSWER
    differ = differing([run.config for run in runs], SEED_OR_LENGTH)
    if differ:
        named = [*differ[:NAMED], "..."] if len(differ) > NAMED else differ
        yield f"The runs differ in {', '.join(named)} (Table 5)."


def _of_seeds(comparison: Comparison) -> Iterator[str]:
    if len(set(comparison.plain.values())) < 2:
        yield ONE_KIND
    compared = [(outcome, method) for outcome in comparison.outcomes for method in outcome.differences]
    if compared:
        yield TESTED
        yield CORRECTED
    seeds = [min(len(outcome.means[method]), len(outcome.means[comparison.reference])) for outcome, method in compared]
    if 1 in seeds:
        yield ONE_RUN
    if any(number < ENOUGH for number in seeds):
        yield MORE_SEEDS
    if any(means.isna().any() for outcome in comparison.outcomes for means in outcome.means.values()):
        yield BROKEN
