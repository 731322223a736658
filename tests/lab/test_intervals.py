"""Intervals and tests of reports against scipy, textbook formulas and plain loops."""

import itertools
import math
import random
import statistics

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from cw_plugin.lab.intervals import holm, mean_over_questions, over_questions, over_seeds

EIGHTHS = st.integers(-8, 8).map(lambda eighths: eighths / 8)  # whose sums are exact
RUNS = st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, math.nan]), EIGHTHS), min_size=1, max_size=4)


def as_runs(runs) -> pd.Series:
    seeds, values = zip(*runs, strict=True)
    return pd.Series(values, seeds)


@given(ours=RUNS, theirs=RUNS, order=st.randoms())
@example(ours=[(1, 0.0), (2, 0.5), (3, 1.0)], theirs=[(1, 0.25), (2, 0.0), (3, 1.0)], order=random.Random(1))
@pytest.mark.filterwarnings("ignore")  # of scipy, for a single run
def test_methods_are_compared_over_seeds(ours, theirs, order):
    """By a paired t-test if both have the same seeds, each once, and else by Welch's. Neither one run, nor runs among
    which nothing varies, make a method certain."""
    seeds = [sorted(seed for seed, _ in runs) for runs in (ours, theirs)]
    if seeds[0] == seeds[1] == sorted({*seeds[0]} & {1, 2, 3, 4}):
        of_ours, of_theirs = ([value for _, value in sorted(runs)] for runs in (ours, theirs))
        test, varying = stats.ttest_rel(of_ours, of_theirs), [np.subtract(of_ours, of_theirs)]
    else:
        varying = [[value for _, value in runs] for runs in (ours, theirs)]
        test = stats.ttest_ind(*varying, equal_var=False)
    order.shuffle(theirs)
    found = over_seeds(as_runs(ours), as_runs(theirs))
    value = statistics.mean(value for _, value in ours) - statistics.mean(value for _, value in theirs)
    expected = value, *test.confidence_interval(), test.pvalue
    if min(len(ours), len(theirs)) < 2 or all(len({*values}) == 1 for values in varying):
        expected = value, math.nan, math.nan, math.nan
    assert found == pytest.approx(expected, nan_ok=True)


@given(p=st.lists(st.sampled_from([0, 0.01, 0.02, 0.03, 0.04, 0.3, 1, math.nan]), max_size=6), more=st.integers(0, 3))
def test_several_tests_are_corrected_as_holm_does(p, more):
    """The i-th smallest of n times n - i, and none smaller than that of a smaller p."""
    known = sorted(value for value in p if value == value)
    tests = len(known) + more
    expected = {
        key: min(1, max(smaller * (tests - i) for i, smaller in enumerate(known) if smaller <= value))
        for key, value in enumerate(p)
        if value == value
    }
    assert holm(dict(enumerate(p)), tests) == pytest.approx(expected)
    if more == 0:
        assert holm(dict(enumerate(p))) == pytest.approx(expected)


@given(means=st.lists(st.sampled_from([0, 0, 1, 1, 0.25, 0.5]), min_size=1, max_size=9))
def test_a_mean_over_questions_has_the_interval_of_wilson_or_of_student(means):
    n, mean = len(means), statistics.mean(means)
    if set(means) <= {0, 1}:  # that none, or every one, was answered does not make certain that the next one is
        z = stats.norm.ppf(0.975)
        middle, half = mean + z * z / 2 / n, z * math.sqrt(mean * (1 - mean) / n + z * z / 4 / n / n)
        expected = mean, (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
    elif len(set(means)) == 1:
        expected = mean, 0, 1
    else:
        half = stats.t.ppf(0.975, n - 1) * statistics.stdev(means) / math.sqrt(n)
        expected = mean, max(0, mean - half), min(1, mean + half)
    assert mean_over_questions(pd.Series(means)) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60)
@given(benchmarks=st.lists(st.lists(EIGHTHS, min_size=1, max_size=4), min_size=1, max_size=3))
@example([[0.0], [0.0, -0.25], [-0.375, -0.5, 0.375, 1.0]])  # whose mean is 0 but for rounding
def test_checkpoints_are_compared_over_the_questions_of_each_benchmark(benchmarks):
    """Each benchmark counts as much as another, however many questions it has. The p-value is that of every sign."""
    theirs = {str(place): pd.Series(0.0, range(9)) for place in range(len(benchmarks))}  # more questions than ours
    found = over_questions({str(place): pd.Series(values) for place, values in enumerate(benchmarks)}, theirs)
    value = statistics.mean(statistics.mean(values) for values in benchmarks)
    as_extreme, all_signs = 0, list(itertools.product((-1, 1), repeat=sum(map(len, benchmarks))))
    for signs in all_signs:
        rest = list(signs)
        means = [statistics.mean(rest.pop() * each for each in values) for values in benchmarks]
        as_extreme += abs(statistics.mean(means)) >= abs(value) - 1e-12
    low = high = math.nan
    if min(map(len, benchmarks)) > 1 and any(len(set(values)) > 1 for values in benchmarks):
        error = math.sqrt(sum(statistics.variance(values) / len(values) for values in benchmarks)) / len(benchmarks)
        half = stats.t.ppf(0.975, sum(len(values) - 1 for values in benchmarks)) * error
        low, high = value - half, value + half
    assert found == pytest.approx((value, low, high, as_extreme / len(all_signs)), nan_ok=True, abs=1e-12)


def test_checkpoints_that_were_asked_nothing_alike_have_no_difference():
    found = over_questions({"x": pd.Series([1.0, 0.0], [1, 2])}, {"x": pd.Series([1.0, 0.0], [3, 4])})
    assert all(map(math.isnan, found))
