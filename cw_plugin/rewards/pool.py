"""The processes that grade answers.

verl calls the reward from threads of Ray actors. So the workers are fresh interpreters, not forks of a process with
threads. They do not import the main module, which in an actor is all of Ray. loky's context starts them like that;
pebble schedules, kills and replaces them.
"""

from __future__ import annotations

import logging
import multiprocessing.process
import os
import signal
import threading
import weakref
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool

from loky.backend import get_context
from pebble import ProcessExpired, ProcessPool

from cw_plugin.errors import GradingError
from cw_plugin.rewards import worker

# A child of verl's logger: in verl's processes the root logger shows only errors.
logger = logging.getLogger("verl.cw_plugin")

TIME_LIMIT = 2.0  # seconds of CPU time for one answer; most take 0.003, the slowest right one of the benchmarks 0.5
WALL_FACTOR = 10  # on a busy machine, wall-clock time may exceed CPU time by this factor
ATTEMPTS = 3


class GradingPool:
    """Grades answers in worker processes, which are killed and replaced when an answer takes too long.

    The processes start with the first answer, and end with the process that owns the pool.

    Args:
        time_limit: seconds of CPU time for one answer. The wall-clock limit is ten times as long.
        workers: number of processes; by default one for each CPU this process may use, at most four, because verl
            runs several reward actors.
    """

    def __init__(self, time_limit: float = TIME_LIMIT, workers: int | None = None):
        self.time_limit = time_limit
        self.workers = workers or min(4, len(os.sched_getaffinity(0)))
        self._start_anew()
        _pools.add(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None

    def grade(self, ground_truth: str, text: str, extraction: str = "evaluation") -> worker.Grade:
        """Grade one answer; blocks the calling thread, and may be called from many.

        An answer that takes too long counts as wrong. So does one on which grading fails, or which ends three processes
        in a row; these two cases are logged.

        Raises:
            GradingError: the processes end before they receive the answer, so the answer is not the cause.
        """
        task = (ground_truth, text[-worker.MAX_CHARACTERS :], extraction, self.time_limit)
        for attempt in range(1, ATTEMPTS + 1):
            pool = self._running()
            try:
                grade = _result(pool, _schedule(pool, task, WALL_FACTOR * self.time_limit))
                if grade.failure:
                    logger.warning(
                        "Grading %.200r against the ground truth %.200r failed, so it counts as wrong. If this "
                        "repeats, install the version of math-verify that pyproject.toml names. %s",
                        text, ground_truth, grade.failure,
                    )  # fmt: skip
                return grade
            except FutureTimeoutError:
                return worker.stopped(f"it took more than {WALL_FACTOR * self.time_limit:g} s")
            except ProcessExpired as expired:
                # Not the CPU limit: the process crashed or was killed. The next one may succeed.
                if expired.exitcode == -signal.SIGVTALRM:
                    return worker.stopped(f"it took more than {self.time_limit:g} s of CPU time")
                if attempt == ATTEMPTS:
                    logger.warning(
                        "%d grading processes ended (the last with exit code %s) on one answer, which counts as wrong. "
                        "If this repeats, check whether the machine ran out of memory. The answer: %.200r",
                        ATTEMPTS, expired.exitcode, text,
                    )  # fmt: skip
                    return worker.stopped(f"{ATTEMPTS} grading processes ended on it (exit code {expired.exitcode})")
            except BrokenProcessPool:
                self._discard(pool)
        raise GradingError(
            f"The grading processes ended {ATTEMPTS} times before they took an answer. Their error is above; "
            "check that math-verify is installed for this Python and that the machine has free memory."
        )

    def close(self) -> None:
        """End the workers; a later grade starts new ones."""
        if self._pool is not None:
            self._discard(self._pool)

    def _running(self) -> ProcessPool:
        with self._lock:
            if self._pool is None:
                self._pool = ProcessPool(self.workers, initializer=worker.initialize, context=get_context("loky"))
            return self._pool

    def _discard(self, pool: ProcessPool) -> None:
        with self._lock:
            if self._pool is not pool:
                return  # another thread was first
            self._pool = None
        pool.stop()
        pool.join()


def _schedule(pool: ProcessPool, task: tuple[str, str, str, float], timeout: float) -> Future[worker.Grade]:
    try:
        return pool.schedule(worker.grade, args=task, timeout=timeout)
    except RuntimeError as error:  # the pool broke, or another thread discarded it
        raise BrokenProcessPool(str(error)) from error


def _result(pool: ProcessPool, future: Future[worker.Grade]) -> worker.Grade:
    # A pool that breaks forgets the tasks that it had not handed out yet.
    while not wait([future], timeout=1.0).done:
        if not pool.active:
            raise BrokenProcessPool("the pool broke while the answer was waiting")
    return future.result()


_pools: weakref.WeakSet[GradingPool] = weakref.WeakSet()
_shared: dict[float, GradingPool] = {}
_shared_lock = threading.Lock()


def shared_pool(time_limit: float = TIME_LIMIT) -> GradingPool:
    """This process's pool for ``time_limit``."""
    with _shared_lock:
        if time_limit not in _shared:
            _shared[time_limit] = GradingPool(time_limit)
        return _shared[time_limit]


def _after_fork() -> None:
    """After a fork: the child has its parent's locks, which may be held, but not the threads that serve a pool."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for pool in _pools:
        pool._start_anew()
    # Workers of the parent, which multiprocessing would end and wait for when this process exits. It empties the set
    # itself in the processes that it forks; os.fork does not.
    multiprocessing.process._children.clear()  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_after_fork)
