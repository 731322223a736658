"""Confidence intervals and tests, by scipy. Methods are compared over seeds; checkpoints, over questions."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from scipy import stats

ALPHA = 0.05  # a difference with a smaller p-value is significant

Key = TypeVar("Key", bound=Hashable)

_SAME = 1e-9  # values that differ less do not vary: an interval without width would claim certainty


class Mean(NamedTuple):
    """A mean with its 95% interval, whose ends are nan if there is none."""

    mean: float
    low: float = math.nan
    high: float = math.nan


class Difference(NamedTuple):
    """The difference of two means with its 95% interval and its p-value.

    low and high are nan for a single seed or question, and where nothing varies from one to the next. Of seeds, p is
    nan then as well.
    """

    value: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan


def over_seeds(ours: pd.Series, theirs: pd.Series) -> Difference:
    """Compare two methods over their runs by a t-test: paired if both have the same seeds, else Welch's.

    Args:
        ours: a float for each run, with the seed in the index, nan if it is not known.
        theirs: the same of the other method.
    """
    seeds_are_known = ours.index.is_unique and ours.index.notna().all()  # and each once
    if not seeds_are_known or len(ours) != len(theirs) or set(ours.index) != set(theirs.index):
        return welch(ours, theirs)
    value = float(ours.mean() - theirs.mean())
    partners = theirs.loc[ours.index]
    if len(ours) < 2 or not _varies(ours - partners):
        return Difference(value)
    return _tested(value, stats.ttest_rel(ours, partners))


def welch(ours: pd.Series, theirs: pd.Series) -> Difference:
    """Compare two methods over their runs by Welch's t-test, whatever their seeds."""
    value = float(ours.mean() - theirs.mean())
    if min(len(ours), len(theirs)) < 2 or not (_varies(ours) or _varies(theirs)):
        return Difference(value)
    return _tested(value, stats.ttest_ind(ours, theirs, equal_var=False))


def _varies(values: pd.Series) -> bool:
    return bool(values.std() >= _SAME)


def _tested(value: float, test: Any) -> Difference:
    low, high = test.confidence_interval()
    return Difference(value, float(low), float(high), float(test.pvalue))


def mean_over_seeds(values: Sequence[float] | np.ndarray | pd.Series) -> Mean:
    """Mean and 95% interval by Student's t; there is no interval for fewer than two values, or if they are equal."""
    mean = float(np.mean(values)) if len(values) else math.nan
    if len(values) < 2 or np.std(values) < _SAME:
        return Mean(mean)
    low, high = stats.t.interval(0.95, len(values) - 1, mean, stats.sem(values))
    return Mean(mean, float(low), float(high))


def holm(p: Mapping[Key, float], tests: int | None = None) -> dict[Key, float]:
    """Correct p-values for several tests (Holm 1979).

    Args:
        p: the p-values. Those that are nan are left out.
        tests: their number, if some cannot be made yet; by default, that of ``p``.
    """
    known = {key: value for key, value in p.items() if not math.isnan(value)}
    order = sorted(known, key=known.__getitem__)
    number = len(order) if tests is None else tests
    corrected = np.maximum.accumulate([known[key] * (number - place) for place, key in enumerate(order)])
    return {key: min(1.0, float(value)) for key, value in zip(order, corrected, strict=True)}


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that at least one of ``k`` answers is right, if ``c`` of ``n`` answers to the question are.

    It is ``1 - C(n - c, k) / C(n, k)`` for k of 1 to n, the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374,
    equation 1).
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_over_questions(scores: pd.Series) -> Mean:
    """Mean over questions of their scores (0 to 1), and its 95% interval.

    The interval is Wilson's if each score is 0 or 1, else Student's t, cut at 0 and 1.
    """
    if scores.isin((0, 1)).all():
        wilson = stats.binomtest(round(scores.sum()), len(scores)).proportion_ci(method="wilson")
        return Mean(float(scores.mean()), float(wilson.low), float(wilson.high))
    mean, low, high = mean_over_seeds(scores)
    if math.isnan(low):
        return Mean(mean, 0.0, 1.0)
    return Mean(mean, max(0.0, low), min(1.0, high))


def over_questions(ours: Mapping[str, pd.Series], theirs: Mapping[str, pd.Series]) -> Difference:
    """Compare two checkpoints by the unweighted mean over benchmarks of their pass@1, on the questions both were asked.

    The p-value is that of a permutation test: if the checkpoints were equal, the difference in each question could as
    well have the other sign.

    Args:
        ours: benchmark -> the mean accuracy of each question, by question.
        theirs: the same of the other checkpoint.
    """
    by_benchmark = [(ours[name] - theirs[name]).dropna().to_numpy(float) for name in ours]
    questions = [len(differences) for differences in by_benchmark]
    if min(questions) == 0:
        return Difference(math.nan)
    value = float(np.mean([differences.mean() for differences in by_benchmark]))
    p = _permutation_test(by_benchmark)
    if min(questions) == 1 or all(differences.std() < _SAME for differences in by_benchmark):
        return Difference(value, p=p)
    variance = sum(differences.var(ddof=1) / len(differences) for differences in by_benchmark)
    error = variance**0.5 / len(by_benchmark)
    low, high = stats.t.interval(0.95, sum(questions) - len(by_benchmark), value, error)
    return Difference(value, float(low), float(high), p)


def _permutation_test(by_benchmark: Sequence[np.ndarray]) -> float:
    """The p-value of the mean over benchmarks of their mean differences, where each difference may change its sign."""
    shares = np.concatenate([differences / len(differences) / len(by_benchmark) for differences in by_benchmark])
    if len(shares) == 1:  # which scipy's test refuses
        return 1.0
    test = stats.permutation_test((shares,), _sum, permutation_type="samples", vectorized=True, batch=1000, rng=0)
    return float(test.pvalue)


def _sum(shares: np.ndarray, axis: int) -> np.ndarray:
    """The sum without its last digits, in which sums that are equal differ by rounding."""
    total: np.ndarray = np.round(shares.sum(axis=axis), 12)
    return total
