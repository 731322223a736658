"""The checks of a dataset before its file is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cw_plugin.rewards.pool import shared_pool
from cw_plugin.rewards.worker import Grade

NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Failure:
    """A row that fails a check, and the reason."""

    row: int
    reason: str


def duplicates(problems: Sequence[str], ground_truths: Sequence[str]) -> list[Failure]:
    """Rows whose problem repeats that of an earlier row; white space does not count."""
    first: dict[str, int] = {}
    failures = []
    for row, problem in enumerate(problems):
        earlier = first.setdefault(" ".join(problem.split()), row)
        if earlier != row:
            before = ground_truths[earlier]
            answer = "the same answer" if ground_truths[row] == before else f"another answer, {before!r}"
            failures.append(Failure(row, f"the same problem as row {earlier}, with {answer}"))
    return failures


def ungradable(
    ground_truths: Sequence[str], extraction: str, progress: Callable[[Iterable[Any]], Iterable[Any]]
) -> list[Failure]:
    r"""Rows whose own answer, in a box, is not graded as right: it cannot be parsed, or grading takes too long.

    Args:
        ground_truths: the answers.
        extraction: the rule that will grade them, "training" or "evaluation".
        progress: wraps the iterator over the ``len(ground_truths)`` results.
    """
    pool = shared_pool()

    def grade(ground_truth: str) -> Grade:
        return (
            pool.grade(ground_truth, rf"The answer is $\boxed{{{ground_truth}}}$.", extraction)
            if ground_truth
            else Grade(0.0, "")
        )

    with ThreadPoolExecutor(4 * pool.workers) as threads:
        grades = list(progress(threads.map(grade, ground_truths)))
    return [
        Failure(row, _why(ground_truth, grade))
        for row, (ground_truth, grade) in enumerate(zip(ground_truths, grades, strict=True))
        if grade.accuracy != 1.0
    ]


def _why(ground_truth: str, grade: Grade) -> str:
    if not ground_truth:
        return NO_ANSWER
    if grade.stopped:
        return f"the answer {ground_truth!r} could not be graded: {grade.stopped}"
    if grade.failure:
        return f"the answer {ground_truth!r} could not be graded: {grade.failure.strip().splitlines()[-1]}"
    return f"the answer {ground_truth!r} does not parse, so no response can be right"
