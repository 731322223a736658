"""The processes that grade answers.

verl calls the reward from threads of Ray actors. So the workers are fresh interpreters, not forks of a process with
threads. Each has pipes of its own, so that one can be killed at any moment without harm to the others.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from cw_plugin.errors import GradingError, how_to_install
from cw_plugin.rewards.worker import Grade, stopped

# A child of verl's logger: in verl's processes the root logger shows only errors.
logger = logging.getLogger("verl.cw_plugin")

TIME_LIMIT = 2.0  # seconds of CPU time for one answer; most take 0.003, the slowest right one of the benchmarks 0.5
WALL_FACTOR = 10  # on a busy machine, wall-clock time may exceed CPU time by this factor
START_LIMIT = 120.0  # seconds for a process to import math-verify, which takes one or two where nothing else runs
MAX_CHARACTERS = 200_000  # of a response; only its last ones are sent to a worker


class _Worker:
    """One grading process. It reads questions from a pipe, a line of JSON each, and writes grades to another."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cw_plugin.rewards.worker", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        self.is_idle = False
        try:
            failure = self._receive(START_LIMIT)
        except TimeoutError as error:
            raise GradingError(f"A grading process does not start: {error}. The machine is too busy.") from None
        if failure:
            raise GradingError(f"A grading process cannot import math-verify: {failure}. {how_to_install('data')}")

    def ask(self, question: tuple[Any, ...], seconds: float) -> Grade:
        """The grade. After a TimeoutError or EOFError (with the exit code) the process has ended."""
        self.is_idle = False
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:  # it has ended, which reading finds out as well
            pass
        return Grade(*self._receive(seconds))

    def _receive(self, seconds: float) -> Any:
        assert self.process.stdout is not None
        received, deadline = b"", time.monotonic() + seconds
        try:
            while not received.endswith(b"\n"):
                if not select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise TimeoutError(f"it took more than {seconds:g} s")
                new = os.read(self.process.stdout.fileno(), 1 << 16)
                if not new:
                    raise EOFError(self.process.wait())  # the exit code
                received += new
            self.is_idle = True
            return json.loads(received)
        finally:
            if not self.is_idle:
                self.end()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):  # of what it did not read
                pipe.close()  # type: ignore[union-attr]


class GradingPool:
    """Grades answers in worker processes, which are killed and replaced when an answer takes too long.

    The processes start with the first answers, and end with the process that owns the pool. A fork of that process
    starts its own.

    Args:
        time_limit: seconds of CPU time for one answer. The wall-clock limit is ten times as long.
        workers: number of processes; by default one for each CPU this process may use, at most four, because verl
            runs several reward actors.
    """

    def __init__(self, time_limit: float = TIME_LIMIT, workers: int | None = None):
        self.time_limit = time_limit
        self.workers = workers or min(4, len(os.sched_getaffinity(0)))
        self._start_anew()

    def _start_anew(self) -> None:
        self._owner = os.getpid()
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()  # None: may be started
        for _ in range(self.workers):
            self._idle.put(None)

    def grade(self, ground_truth: str, text: str, extraction: str = "evaluation") -> Grade:
        """Grade one answer; blocks the calling thread, and may be called from many.

        An answer that takes too long counts as wrong. So does one on which grading fails, or which ends processes until
        the wall-clock limit; these two cases are logged. Where a process was killed for another reason, another one
        grades the answer: at once, and then after pauses that grow.

        Raises:
            GradingError: no process starts, so the answer is not the cause.
        """
        if self._owner != os.getpid():
            self._start_anew()
        question = (ground_truth, text[-MAX_CHARACTERS:], extraction, self.time_limit)
        limit = WALL_FACTOR * self.time_limit
        worker = self._idle.get()
        deadline, pause = time.monotonic() + limit, 0.0
        try:
            while True:
                try:
                    worker = worker or _Worker()
                    grade = worker.ask(question, limit)
                    break
                except TimeoutError as error:
                    return stopped(str(error))
                except EOFError as error:
                    had_the_answer, worker = worker is not None, None
                    if error.args == (-signal.SIGVTALRM,):
                        return stopped(f"it took more than {self.time_limit:g} s of CPU time")
                    if time.monotonic() + pause > deadline:
                        return self._give_up(text, error, had_the_answer)
                    time.sleep(pause)
                    pause = 2 * pause or 0.25
        finally:
            self._idle.put(worker if worker and worker.is_idle else None)
        if grade.failure:
            logger.warning(
                "Grading %.200r against the ground truth %.200r failed, so it counts as wrong. If this repeats, "
                "install the version of math-verify that pyproject.toml names. %s",
                text, ground_truth, grade.failure,
            )  # fmt: skip
        return grade

    def _give_up(self, text: str, error: EOFError, had_the_answer: bool) -> Grade:
        if not had_the_answer:
            raise GradingError(
                f"No grading process starts (exit code {error}). Check that math-verify is installed for "
                f"{sys.executable} and that the machine has free memory."
            )
        logger.warning(
            "Grading processes ended for %g s on one answer (exit code %s), which counts as wrong. If this repeats, "
            "check whether the machine ran out of memory. The answer: %.200r",
            WALL_FACTOR * self.time_limit, error, text,
        )  # fmt: skip
        return stopped(f"grading processes ended on it (exit code {error})")

    def close(self) -> None:
        """End the workers, each after the answer that it has; a later grade starts new ones."""
        for worker in [self._idle.get() for _ in range(self.workers)]:
            if worker is not None:
                worker.end()
            self._idle.put(None)


_shared: dict[tuple[int, float], GradingPool] = {}


def shared_pool(time_limit: float = TIME_LIMIT) -> GradingPool:
    """This process's pool for ``time_limit``."""
    return _shared.setdefault((os.getpid(), time_limit), GradingPool(time_limit))
