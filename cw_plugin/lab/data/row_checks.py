"""The checks of a dataset before its file is written."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from cw_plugin.lab.rewards import ground_truth_problem
from cw_plugin.lab.rewards.pool import shared_pool

NO_ANSWER = "no answer"
UNGRADABLE = "an answer that cannot be graded"
REPEATED = "the problem of an earlier row"
CONTAMINATED = "a problem that is also in a benchmark"


class RowProblem(NamedTuple):
    """A row, from 0, the check that it fails, and why."""

    row: int
    check: str
    reason: str


def repeated(problems: Sequence[str], answers: Sequence[str], rows: Iterable[int]) -> list[RowProblem]:
    """Rows whose problem repeats that of an earlier one of ``rows``; white space does not count.

    Args:
        problems: of each row of the dataset.
        answers: of each row, the ground truth.
        rows: those that stay; a row must not be left out for one that is left out itself.
    """
    first: dict[str, int] = {}
    findings = []
    for row in rows:
        earlier = first.setdefault(" ".join(problems[row].split()), row)
        if earlier != row:
            is_same = answers[row] == answers[earlier]
            answer = "the same answer" if is_same else f"another answer, {answers[earlier]!r}"
            findings.append(RowProblem(row, REPEATED, f"the same problem as row {earlier}, with {answer}"))
    return findings


def ungradable(answers: Sequence[str]) -> list[RowProblem]:
    """Rows without a ground truth, or with one that math-verify cannot read, reads wrongly, or reads for too long.

    A bar on stderr shows the progress.
    """
    findings = []
    with ThreadPoolExecutor(4 * shared_pool().workers) as threads:
        problems = threads.map(ground_truth_problem, answers)
        bar = track(problems, description="checking answers", total=len(answers), console=Console(stderr=True))
        for row, problem in enumerate(bar):
            if problem:
                findings.append(RowProblem(row, UNGRADABLE if answers[row] else NO_ANSWER, problem))
    return findings
