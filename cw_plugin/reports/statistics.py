"""Confidence intervals of scores, and tests between methods. The sample is one of questions, not of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

_RESAMPLES = 9999

Answers = Mapping[str, Sequence[float]]  # question -> accuracy of each of its answers


@dataclass(frozen=True)
class Score:
    """pass@1 of a benchmark.

    Attributes:
        mean: the mean over questions of the mean over each question's answers, 0 to 1.
        low, high: 95% interval.
        correct, answers: the number of right answers, and of all answers.
        questions: the number of questions.
    """

    mean: float
    low: float
    high: float
    correct: int
    answers: int
    questions: int


def score(answers: Answers) -> Score:
    """pass@1 with its 95% interval by question.

    With one answer to a question, Wilson's interval of a proportion; with several, Student's t over the questions'
    means, cut at 0 and 1 (with equal means everywhere it has no width).
    """
    means = np.array([np.mean(of_question) for of_question in answers.values()])
    correct = round(sum(sum(of_question) for of_question in answers.values()))
    total = sum(map(len, answers.values()))
    if total == len(means):
        low, high = stats.binomtest(correct, total).proportion_ci(method="wilson")
    else:
        half = stats.t.ppf(0.975, len(means) - 1) * stats.sem(means) if len(means) > 1 else 1.0
        low, high = max(0.0, means.mean() - half), min(1.0, means.mean() + half)
    return Score(float(means.mean()), float(low), float(high), correct, total, len(means))


def average(benchmarks: Sequence[Answers]) -> tuple[float, float, float]:
    """Unweighted mean of the benchmarks' scores, with its 95% interval: each benchmark's questions are drawn anew."""
    rng = np.random.default_rng(0)
    draws = np.zeros(_RESAMPLES)
    mean = 0.0
    for answers in benchmarks:
        means = np.array([np.mean(of_question) for of_question in answers.values()])
        draws += means[rng.integers(len(means), size=(_RESAMPLES, len(means)))].mean(1) / len(benchmarks)
        mean += means.mean() / len(benchmarks)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(mean), float(low), float(high)


def paired_difference(ours: Sequence[Answers], theirs: Sequence[Answers]) -> tuple[float, float]:
    """Compare two methods on the questions that both were asked; both have the benchmarks in the same order.

    Returns:
        The difference of the unweighted averages over benchmarks, and the two-sided p-value of a sign-flip permutation
        test: if the methods were equal, each question's difference could equally have the other sign. With one
            benchmark
        and one answer per question, this is McNemar's exact test, and is computed as such.
    """
    weighted = []
    for mine, other in zip(ours, theirs, strict=True):
        common = [question for question in mine if question in other]
        weighted += [(np.mean(mine[q]) - np.mean(other[q])) / len(common) / len(ours) for q in common]
    differences = np.array(weighted)
    total = float(differences.sum())
    differences = differences[differences != 0]
    if not len(differences):
        return total, 1.0
    if np.ptp(np.abs(differences)) < 1e-12:
        return total, float(stats.binomtest(int((differences > 0).sum()), len(differences)).pvalue)
    rng = np.random.default_rng(0)
    flipped = np.array([(differences * rng.choice((-1, 1), len(differences))).sum() for _ in range(_RESAMPLES)])
    as_extreme = int((np.abs(flipped) >= abs(total) - 1e-12).sum())
    return total, (as_extreme + 1) / (_RESAMPLES + 1)
