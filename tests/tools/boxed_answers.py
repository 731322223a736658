"""Responses that box an answer, and the grading of many at a time."""

from concurrent.futures import ThreadPoolExecutor

from cw_plugin.lab.rewards import GradingPool

BOXED = r"<think>so</think> The answer is $\boxed{%s}$."


def grade_all(pool: GradingPool, jobs: list[tuple[str, str, str]]) -> list[float]:
    with ThreadPoolExecutor(4 * pool.workers) as threads:
        return list(threads.map(lambda job: pool.grade(*job).accuracy, jobs))
