"""How methods differ, in numbers: over seeds, from what their runs have logged."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from cw_plugin.lab.intervals import ALPHA, Difference, holm, over_seeds
from cw_plugin.lab.reports.metrics import ENTROPY, NORM, REWARD
from cw_plugin.lab.reports.runs import ACCURACY

FIRST = 100  # steps that the gradient norm is of: after them, the policies have gone different ways
LAST = 10  # steps at least that reward and entropy are of; else the last quarter

OF_ACCURACY = "accuracy"
OF_GRADIENT_NORM = "gradient norm"
# The outcomes besides the accuracy, in the table's order -> their metric.
METRICS = {"reward": REWARD, "entropy": ENTROPY, OF_GRADIENT_NORM: NORM}


@dataclass(frozen=True)
class Outcome:
    """One quantity in which methods are compared.

    Attributes:
        name: such as "reward".
        where: what it is a mean of, such as "steps 151 to 200", or "AIME24, AMC23, step 200" of an evaluation.
        means: method -> the mean of each of its runs, by seed; that of the logarithm, if ``is_ratio``.
        broken: method -> the step from which on a run of it has no finite value, if that is within ``where``. It is not
            in ``means``.
        seeds: method -> how many of its runs have logged it.
        is_ratio: whether the ratio to the reference is compared in place of the difference.
        differences: method -> its difference to the reference; of the logarithm, if ``is_ratio``.
        significant: methods whose difference is significant, corrected for all tests of the comparison.
    """

    name: str
    where: str
    means: dict[str, pd.Series]
    broken: dict[str, int]
    seeds: dict[str, int]
    is_ratio: bool = False
    differences: dict[str, Difference] = field(default_factory=dict)
    significant: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Comparison:
    """The methods of a report and how they differ.

    Attributes:
        plain: method -> whether it is plain GRPO, in the page's order.
        reference: the method that the others are compared with; empty if there is none.
        outcomes: what is compared, in the table's order.
    """

    plain: dict[str, bool]
    reference: str
    outcomes: list[Outcome]

    @property
    def others(self) -> list[str]:
        """The methods besides the reference."""
        return [name for name in self.plain if name != self.reference]


def compare(metrics: pd.DataFrame, plain: Mapping[str, bool], scores: pd.DataFrame) -> Comparison:
    """Compare methods with the first one that is plain GRPO, else with the first one.

    Args:
        metrics: as :func:`.runs.all_metrics` returns them.
        plain: method -> whether it is plain GRPO, in the page's order.
        scores: of evaluations, from :func:`.scores.last_scores`. Where they do not compare another method with the
            first, the last validation that all runs have counts.
    """
    reference = next((name for name in plain if plain[name]), next(iter(plain), ""))
    comparison = Comparison(dict(plain), reference, [])
    outcomes = [
        replace(outcome, differences=_differences(outcome, comparison))
        for outcome in (*_accuracy(metrics, scores, reference), *_over_steps(metrics))
    ]
    p = {
        (outcome.name, method): difference.p
        for outcome in outcomes
        for method, difference in outcome.differences.items()
    }
    significant = [test for test, corrected in holm(p).items() if corrected < ALPHA]
    outcomes = [
        replace(outcome, significant={method for name, method in significant if name == outcome.name})
        for outcome in outcomes
    ]
    return replace(comparison, outcomes=outcomes)


def _differences(outcome: Outcome, comparison: Comparison) -> dict[str, Difference]:
    """Method -> its difference to the reference, of methods that can be compared."""
    means = outcome.means
    if comparison.reference not in means:
        return {}
    return {name: over_seeds(means[name], means[comparison.reference]) for name in comparison.others if name in means}


def broken_from(logged: pd.DataFrame) -> dict[int, int]:
    """The step from which on none of a run's values is finite, by run.

    Runs whose last value is finite are left out: a single one that is not, such as of a gradient norm in float16,
    breaks nothing.

    Args:
        logged: the rows of one metric.
    """
    steps = {}
    for run, values in logged.groupby("run"):
        last_finite = values.step[values.value.notna()].max()
        after = values.step if pd.isna(last_finite) else values.step[values.step > last_finite]
        if len(after):
            steps[run] = int(after.min())
    return steps


def _accuracy(metrics: pd.DataFrame, scores: pd.DataFrame, reference: str) -> Iterator[Outcome]:
    """Of the evaluations, if they have the reference and another method, or if no run was validated.

    Else of the last step after 0 that was validated in every run.
    """
    logged = metrics[metrics.metric == ACCURACY]
    if len(scores) and (logged.empty or (scores.method.nunique() > 1 and reference in set(scores.method))):
        yield _outcome(OF_ACCURACY, scores.metric.iloc[0], scores, {})
        return
    validated = logged[logged.step > 0].groupby("step").run.nunique()
    common = validated.index[validated == metrics.run.nunique()]
    if len(common):
        step = int(common.max())
        yield _outcome(OF_ACCURACY, f"step {step}", logged[logged.step == step], _broken_by(step, logged))


def _over_steps(metrics: pd.DataFrame) -> Iterator[Outcome]:
    """Over steps that all runs share: reward and entropy at the end, the gradient norm at the beginning."""
    for name, metric in METRICS.items():
        logged = metrics[metrics.metric == metric]
        if logged.empty:
            continue
        last = int(logged.groupby("run").step.max().min())
        if name == OF_GRADIENT_NORM:
            begin, end = 1, min(last, FIRST)
        else:
            begin, end = max(last - max(last // 4, LAST), 0) + 1, last
        where = f"steps {begin} to {end}" if end > begin else f"step {end}"
        within = logged[logged.step.between(begin, end)]
        yield _outcome(name, where, within, _broken_by(end, logged), is_ratio=name == OF_GRADIENT_NORM)


def _broken_by(end: int, logged: pd.DataFrame) -> dict[int, int]:
    """Run -> the step from which on it has no finite value, if that is not after ``end``."""
    return {run: step for run, step in broken_from(logged).items() if step <= end}


def _outcome(name: str, where: str, values: pd.DataFrame, broken: Mapping[int, int], is_ratio: bool = False) -> Outcome:
    """An outcome by rows of metrics, or of last_scores. ``broken`` is what :func:`_broken_by` returns."""
    broken_methods: dict[str, int] = {}
    for method, run in values[["method", "run"]].drop_duplicates().itertuples(index=False):
        if run in broken:
            broken_methods[method] = min(broken[run], broken_methods.get(method, broken[run]))
    seeds = values.groupby("method", sort=False).run.nunique()
    compared = values[~values.method.isin(list(broken_methods)) & values.value.notna()]
    if is_ratio:  # the mean is geometric
        positive = compared[compared.value > 0]
        compared = positive.assign(value=np.log(positive.value))
    return Outcome(
        name=name,
        where=where,
        means=_by_seed(compared),
        broken=broken_methods,
        seeds={method: int(number) for method, number in seeds.items()},
        is_ratio=is_ratio,
    )


def _by_seed(values: pd.DataFrame) -> dict[str, pd.Series]:
    """Method -> the mean of each of its runs, by seed."""
    means = values.groupby(["method", "run", "seed"], sort=False, dropna=False).value.mean().droplevel("run")
    return {name: of_method.droplevel("method") for name, of_method in means.groupby(level="method")}
