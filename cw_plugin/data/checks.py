"""What is checked before a file is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cw_plugin.rewards.pool import shared_pool


@dataclass(frozen=True)
class Failure:
    """A row that fails a check, and how."""

    row: int
    reason: str


def empty_problems(problems: Sequence[str | None]) -> list[int]:
    """The rows without a problem."""
    return [row for row, problem in enumerate(problems) if not (problem or "").strip()]


def duplicates(problems: Sequence[str], golds: Sequence[str]) -> list[Failure]:
    """Rows whose problem already stood in an earlier row, up to white space."""
    first: dict[str, int] = {}
    failures = []
    for row, problem in enumerate(problems):
        earlier = first.setdefault(" ".join(problem.split()), row)
        if earlier != row:
            answer = "the same answer" if golds[row] == golds[earlier] else f"another answer, {golds[earlier]!r}"
            failures.append(Failure(row, f"the same problem as row {earlier}, with {answer}"))
    return failures


def ungradable(
    golds: Sequence[str], extraction: str, progress: Callable[[Iterable[float]], Iterable[float]]
) -> list[Failure]:
    r"""Rows whose gold answer, boxed in a normal response, is not graded as right.

    Args:
        golds: the answers.
        extraction: how they will be graded, "training" or "evaluation".
        progress: wraps the iterator over the ``len(golds)`` results.
    """
    pool = shared_pool()

    def grade(gold: str) -> float:
        return pool.grade(gold, rf"The answer is $\boxed{{{gold}}}$.", extraction).accuracy if gold else 0.0

    with ThreadPoolExecutor(4 * pool.workers) as threads:
        accuracies = list(progress(threads.map(grade, golds)))
    return [
        Failure(row, f"the gold answer {gold!r} does not parse, so no response can be right" if gold else "no answer")
        for row, (gold, accuracy) in enumerate(zip(golds, accuracies, strict=True))
        if accuracy != 1.0
    ]
