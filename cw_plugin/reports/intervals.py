"""Confidence intervals and tests, by scipy. Methods are compared over seeds; checkpoints, over questions."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

NAN = float("nan")
_SAME = 1e-9  # values that differ less do not vary: an interval without width would claim certainty


class Difference(NamedTuple):
    """The difference of two means with its 95% interval. low and high are nan where nothing varies from one seed or
    question to the next, and for a single one; of seeds, p as well."""

    value: float
    low: float = NAN
    high: float = NAN
    p: float = NAN


def over_seeds(ours: pd.Series, theirs: pd.Series) -> Difference:
    """Compare two methods, of a float for each run with the seed in the index (nan if it is not known), by a t-test:
    paired if both have the same seeds, else Welch's."""
    same = len(ours) == len(theirs) and set(ours.index) == set(theirs.index)
    paired = bool(same and ours.index.is_unique and ours.index.notna().all())
    value = float(ours.mean() - theirs.mean())
    theirs = theirs.loc[ours.index] if paired else theirs
    varying = [ours - theirs] if paired else [ours, theirs]
    if min(len(ours), len(theirs)) < 2 or all(values.std() < _SAME for values in varying):
        return Difference(value)
    test = stats.ttest_rel(ours, theirs) if paired else stats.ttest_ind(ours, theirs, equal_var=False)
    low, high = test.confidence_interval()
    return Difference(value, float(low), float(high), float(test.pvalue))


def mean_over_seeds(values: Sequence[float] | np.ndarray | pd.Series) -> tuple[float, float, float]:
    """Mean and 95% interval by Student's t; the interval is nan for fewer than two values, or if they are equal."""
    mean = float(np.mean(values)) if len(values) else NAN
    if len(values) < 2 or np.std(values) < _SAME:
        return mean, NAN, NAN
    low, high = stats.t.interval(0.95, len(values) - 1, mean, stats.sem(values))
    return mean, float(low), float(high)


def holm(p: Mapping, tests: int | None = None) -> dict:
    """p-values corrected for several tests (Holm 1979), by the keys of ``p``, without those that are nan. ``tests`` is
    their number, where some cannot be made yet."""
    order = sorted((key for key in p if p[key] == p[key]), key=lambda key: p[key])
    tests = len(order) if tests is None else tests
    corrected = np.maximum.accumulate([p[key] * (tests - place) for place, key in enumerate(order)])
    return {key: min(1.0, float(value)) for key, value in zip(order, corrected, strict=True)}


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that at least one of ``k`` answers is right, if ``c`` of ``n`` answers to the question are, for k
    of 1 to n: ``1 - C(n - c, k) / C(n, k)``, the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374, equation 1).
    """
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mean_over_questions(means: pd.Series) -> tuple[float, float, float]:
    """Mean over questions of their scores (0 to 1), and its 95% interval: by Wilson if each is 0 or 1, else by
    Student's t, cut at 0 and 1."""
    if means.isin((0, 1)).all():
        wilson = stats.binomtest(round(means.sum()), len(means)).proportion_ci(method="wilson")
        return float(means.mean()), float(wilson.low), float(wilson.high)
    mean, low, high = mean_over_seeds(means)
    return (mean, max(0.0, low), min(1.0, high)) if low == low else (mean, 0.0, 1.0)


def over_questions(ours: Mapping[str, pd.Series], theirs: Mapping[str, pd.Series]) -> Difference:
    """Compare two checkpoints by the unweighted mean over benchmarks of their pass@1, on the questions both were asked.

    The p-value is that of a permutation test: if the checkpoints were equal, the difference in each question could as
    well have the other sign. ``ours`` and ``theirs``: benchmark -> the mean accuracy of each question, by question.
    """
    each = [(ours[name] - theirs[name]).dropna().to_numpy(float) for name in ours]
    fewest = min(map(len, each))
    if fewest == 0:
        return Difference(NAN)
    value = float(np.mean([values.mean() for values in each]))
    weighted = np.concatenate([values / len(values) / len(each) for values in each])
    if len(weighted) == 1:  # which scipy's test refuses
        return Difference(value, p=1.0)
    test = stats.permutation_test((weighted,), np.sum, permutation_type="samples", vectorized=True, batch=1000, rng=0)
    if fewest == 1 or all(values.std() < _SAME for values in each):
        return Difference(value, p=float(test.pvalue))
    error = sum(values.var(ddof=1) / len(values) for values in each) ** 0.5 / len(each)
    low, high = stats.t.interval(0.95, sum(map(len, each)) - len(each), value, error)
    return Difference(value, float(low), float(high), float(test.pvalue))
