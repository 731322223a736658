"""Confidence intervals and tests. Of scores: the sample is one of questions, not of answers. Of methods: of seeds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

_RESAMPLES = 9999
FEW = 10  # steps; fewer have no slope, nor blocks

Seed = Hashable | None  # None if it is not known
Values = Sequence[tuple[Seed, float]]  # a value for each run of a method
Curve = tuple[np.ndarray, np.ndarray]  # steps in order, values
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
    means, cut at 0 and 1. If all questions have the same mean, Wilson's of as many questions, with that proportion.
    """
    means = np.array([np.mean(of_question) for of_question in answers.values()])
    correct = round(sum(sum(of_question) for of_question in answers.values()))
    total = sum(map(len, answers.values()))
    if total == len(means) or (len(means) > 1 and np.ptp(means) == 0):
        low, high = _wilson(means.mean(), len(means))
    else:
        half = stats.t.ppf(0.975, len(means) - 1) * stats.sem(means) if len(means) > 1 else 1.0
        low, high = max(0.0, means.mean() - half), min(1.0, means.mean() + half)
    return Score(float(means.mean()), float(low), float(high), correct, total, len(means))


def _wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a proportion."""
    z = float(stats.norm.ppf(0.975))
    centre, half = share + z**2 / 2 / n, z * (share * (1 - share) / n + z**2 / 4 / n**2) ** 0.5
    return max(0.0, (centre - half) / (1 + z**2 / n)), min(1.0, (centre + half) / (1 + z**2 / n))


def average(benchmarks: Sequence[Answers]) -> tuple[float, float, float]:
    """Unweighted mean of the benchmarks' scores, with its 95% interval.

    The intervals of :func:`score` are combined as independent errors, each side on its own: the distance from the mean
    to the limit is the root of the sum of the squares. Of one benchmark it is the benchmark's interval.
    """
    scores = [score(answers) for answers in benchmarks]
    mean = float(np.mean([each.mean for each in scores]))
    down = float(np.linalg.norm([each.mean - each.low for each in scores])) / len(scores)
    up = float(np.linalg.norm([each.high - each.mean for each in scores])) / len(scores)
    return mean, max(0.0, mean - down), min(1.0, mean + up)


def paired_difference(ours: Sequence[Answers], theirs: Sequence[Answers]) -> tuple[float, float]:
    """Compare two models on the questions that both were asked; both have the benchmarks in the same order. What
    another seed of a method would give is not part of it.

    Returns:
        The difference of the unweighted averages over benchmarks, and the two-sided p-value of a sign-flip permutation
        test: if the models were equal, each question's difference could equally have the other sign. With one benchmark
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


@dataclass(frozen=True)
class Difference:
    """The difference of two methods or runs, with its 95% interval by Student's t.

    Attributes:
        p: two-sided; nan if only the interval is asked for.
        sample: what was drawn anew in every sample, such as "paired by seed".
    """

    value: float
    low: float
    high: float
    sample: str
    p: float = float("nan")

    @property
    def of_methods(self) -> bool:
        """Whether another seed may be expected within the interval; else it is one of these runs alone."""
        return "seed" in self.sample


def student(value: float, error: float, freedom: float, sample: str) -> Difference:
    half = float(stats.t.ppf(0.975, freedom)) * error
    p = 2 * float(stats.t.sf(abs(value) / error, freedom)) if error else float(value == 0)
    return Difference(value, value - half, value + half, sample, p)


def _interval(value: float, error: float, freedom: float, sample: str) -> Difference | None:
    """As :func:`student`, but None if the sample does not vary: an interval without width would claim certainty."""
    return student(float(value), float(error), float(freedom), sample) if error > 1e-9 else None


def between_seeds(ours: Values, theirs: Values | None = None) -> Difference | None:
    """Compare two methods by the values of their runs: a paired t-test if both have the same seeds, else Welch's. Or
    compare one with 0.

    Returns:
        The difference, or None if a method has only one run, or if nothing varies from seed to seed.
    """
    if min(len(ours), len(ours if theirs is None else theirs)) < 2:
        return None
    if theirs is None:
        alone = np.array([value for _, value in ours])
        return _interval(alone.mean(), stats.sem(alone), len(alone) - 1, "by seed")
    mine, other = dict(ours), dict(theirs)
    if None not in mine and mine.keys() == other.keys() and len(mine) == len(ours) == len(theirs):
        paired = np.array([mine[seed] - other[seed] for seed in mine])
        return _interval(paired.mean(), stats.sem(paired), len(paired) - 1, "paired by seed")
    a, b = (np.array([value for _, value in values]) for values in (ours, theirs))
    errors = np.array([stats.sem(a) ** 2, stats.sem(b) ** 2])
    scale = (errors**2 / [len(a) - 1, len(b) - 1]).sum()
    freedom = errors.sum() ** 2 / scale if scale > 0 else 1.0
    return _interval(a.mean() - b.mean(), errors.sum() ** 0.5, freedom, "by seed, Welch's t")


def between_questions(ours: Sequence[Answers], theirs: Sequence[Answers]) -> Difference | None:
    """As :func:`paired_difference`, with Student's interval over questions instead of a p-value.

    Returns:
        The difference, or None if a benchmark has fewer than two questions in common, or if no answer differs.
    """
    value, variance, freedom = 0.0, 0.0, 0
    for mine, other in zip(ours, theirs, strict=True):
        each = np.array([np.mean(mine[q]) - np.mean(other[q]) for q in mine if q in other])
        if len(each) < 2:
            return None
        value += each.mean() / len(ours)
        variance += each.var(ddof=1) / len(each) / len(ours) ** 2
        freedom += len(each) - 1
    found = _interval(value, variance**0.5, freedom, "by question")
    return found and replace(found, p=float("nan"))


def between_steps(ours: Curve, theirs: Curve | None = None) -> Difference | None:
    """Compare two runs by their means over the steps that both have, or one with 0. Neighbouring steps are alike, so
    that the sample is one of five blocks of steps (batch means).

    Returns:
        The difference, or None of fewer than 10 steps, or if it is the same in all blocks.
    """
    steps, differences = ours
    if theirs is not None:
        _, mine, other = np.intersect1d(steps, theirs[0], return_indices=True)
        differences = ours[1][mine] - theirs[1][other]
    if len(differences) < FEW:
        return None
    blocks = np.array([block.mean() for block in np.array_split(differences, 5)])
    return _interval(differences.mean(), stats.sem(blocks), 4, "by step")


def rise(curve: Curve) -> float:
    """Slope of the straight line through a curve, times the number of steps; nan of fewer than 10 steps."""
    return float(stats.linregress(*curve).slope * _span(curve)) if len(curve[0]) >= FEW else float("nan")


def _span(curve: Curve) -> int:
    return int(np.ptp(curve[0])) + 1


def between_lines(ours: Curve, theirs: Curve | None = None) -> Difference | None:
    """Compare the rises of two runs, or one with 0; the sample is one of steps, which scatter about their line. None if
    no step does."""
    curves = [curve for curve in (ours, theirs) if curve is not None]
    errors = np.nan_to_num([stats.linregress(*curve).stderr * _span(curve) for curve in curves])  # nan if constant
    value = rise(ours) - sum(map(rise, curves[1:]))
    return _interval(value, float(np.linalg.norm(errors)), sum(len(steps) - 2 for steps, _ in curves), "by step")
