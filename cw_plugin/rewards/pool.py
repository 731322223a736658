"""The processes that grade answers.

verl calls the reward from threads of Ray actors. So the workers are fresh interpreters, not forks of a process with
threads. Each has a connection of its own, so that one can be killed at any moment without harm to the others.
"""

import logging
import os
import queue
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from typing import Any, NamedTuple

from cw_plugin.errors import GradingError, how_to_install

logger = logging.getLogger("verl.cw_plugin")  # a child of verl's: in its processes the root logger shows only errors

TIME_LIMIT = 2.0  # seconds of CPU time for one answer; most take 0.003, the slowest right one of the benchmarks 0.5
WALL_FACTOR = 10  # on a busy machine, wall-clock time may exceed CPU time by this factor
START_LIMIT = 120.0  # seconds for a process to import math-verify, which takes one or two where nothing else runs
MAX_CHARACTERS = 200_000  # of a response; only its last ones are sent to a worker
FIRST_ANSWER = ("2", r"\boxed{1}", "evaluation", START_LIMIT)  # fills math-verify's caches


class Grade(NamedTuple):
    """A worker's verdict on one answer."""

    accuracy: float = 0.0
    prediction: str = ""  # the answer as it stands in the response, "" where none was found
    failure: str = ""  # the traceback if grading failed. The pool logs it: a worker must not write files
    stopped: str = ""  # which limit ended the grading; such an answer counts as wrong


class _Worker:
    """One grading process, and this end of the connection to it."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        command = [sys.executable, "-m", "cw_plugin.rewards.worker", str(theirs.fileno()), str(os.getpid())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs:
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        if self.ask(FIRST_ANSWER, START_LIMIT).stopped:
            raise GradingError(
                f"a grading process does not start in {START_LIMIT:g} s; the machine is too busy, end other programs"
            )

    def ask(self, question: tuple[Any, ...], seconds: float) -> Grade:
        """The grade. If there is none, the process has ended; an EOFError has its exit code."""
        grade = None
        try:
            self.connection.send(question)
            if self.connection.poll(seconds):
                grade = self.connection.recv()
        except (EOFError, OSError):
            raise EOFError(self.process.wait()) from None
        finally:
            if grade is None:
                self.end()
        return grade or Grade(stopped=f"it took more than {seconds:g} s")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


class GradingPool:
    """Grades answers in worker processes, which start with the first answers and end with this process.

    Args:
        time_limit: seconds of CPU time for one answer. The wall-clock limit is ten times as long.
        workers: processes; by default one for each CPU, at most four, because verl has several actors that grade.
    """

    def __init__(self, time_limit: float = TIME_LIMIT, workers: int | None = None):
        self.time_limit = time_limit
        self.workers = workers or min(4, len(os.sched_getaffinity(0)))
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
        question = (ground_truth, text[-MAX_CHARACTERS:], extraction, self.time_limit)
        limit = WALL_FACTOR * self.time_limit
        grade, worker = None, self._idle.get()  # may wait for long, which is not the answer's time
        deadline, pause = time.monotonic() + limit, 0.0
        try:
            while grade is None:
                try:
                    worker = worker or _Worker()
                    grade = worker.ask(question, limit)
                except EOFError as error:
                    (code,), started, worker = error.args, worker is not None, None
                    is_last = time.monotonic() + pause > deadline
                    if code == -signal.SIGVTALRM:
                        grade = Grade(stopped=f"it took more than {self.time_limit:g} s of CPU time")
                    elif not started and (is_last or code > 0):  # the code of a killed process is negative
                        raise GradingError(
                            f"no grading process starts (exit code {code}); check that the machine has free memory and "
                            f"that {sys.executable} has math-verify: {how_to_install('reward')}"
                        ) from None
                    elif is_last:
                        grade = Grade(failure=f"Grading processes ended on it for {limit:g} s (exit code {code}).")
                    else:
                        time.sleep(pause)
                        pause = 2 * pause or 0.25
        finally:
            self._idle.put(worker)
        if grade.failure:
            logger.warning(
                "Grading %.200r against the ground truth %.200r failed, so it counts as wrong. If this repeats, check "
                "the machine's free memory, and install the version of math-verify that pyproject.toml names. %s",
                text, ground_truth, grade.failure,
            )  # fmt: skip
        return grade

    def close(self) -> None:
        """End the workers, each after the answer that it has; a later grade starts new ones."""
        for worker in [self._idle.get() for _ in range(self.workers)]:
            if worker is not None:
                worker.end()
            self._idle.put(None)


_shared: dict[float, GradingPool] = {}
os.register_at_fork(after_in_child=_shared.clear)  # a fork starts its own


def shared_pool(time_limit: float = TIME_LIMIT) -> GradingPool:
    """This process's pool for ``time_limit``."""
    return _shared.setdefault(time_limit, GradingPool(time_limit))
