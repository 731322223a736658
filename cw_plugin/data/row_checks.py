"""The checks of a dataset before its file is written."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from cw_plugin.rewards import ground_truth_problem
from cw_plugin.rewards.pool import shared_pool

NO_ANSWER = "no answer"
UNGRADABLE = "an answer that cannot be graded"
REPEATED = "the problem of an earlier row"
CONTAMINATED = "a problem that is also in a benchmark"


class RowProblem(NamedTuple):
    """A row, from 0, the check that it fails, and why."""

    row: int
    check: str
    reason: str


def repeated(problems: Sequence[str], answers: Sequence[str]) -> list[RowProblem]:
    """Rows whose problem repeats that of an earlier row; white space does not count."""
    first: dict[str, int] = {}
    findings = []
    for row, problem in enumerate(problems):
        earlier = first.setdefault(" ".join(problem.split()), row)
        if earlier != row:
            same = answers[row] == answers[earlier]
            answer = "the same answer" if same else f"another answer, {answers[earlier]!r}"
            findings.append(RowProblem(row, REPEATED, f"the same problem as row {earlier}, with {answer}"))
    return findings


def ungradable(answers: Sequence[str], progress: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> list[RowProblem]:
    """Rows without a ground truth, or whose own ground truth, in a box, is not graded as right: it cannot be read, or
    takes long. ``progress`` wraps the iterator over the ``len(answers)`` results."""
    with ThreadPoolExecutor(4 * shared_pool().workers) as threads:
        problems = enumerate(progress(threads.map(ground_truth_problem, answers)))
        return [
            RowProblem(row, UNGRADABLE if answers[row] else NO_ANSWER, problem) for row, problem in problems if problem
        ]
