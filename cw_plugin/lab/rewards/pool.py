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
from multiprocessing.connection import Connection
from typing import NamedTuple

from cw_plugin.lab.errors import GradingError, how_to_install

logger = logging.getLogger("verl.cw_plugin")  # a child of verl's: in its processes the root logger shows only errors

# An answer has 2 s of CPU time. worker.py ends it then, or a second later where Python does not get to run. This module
# ends the process after 20 s of wall-clock time.
TIME_LIMIT = 2.0  # seconds of CPU time for one answer; most take 0.003, the slowest right one of the benchmarks 0.5
WALL_FACTOR = 10  # on a busy machine, wall-clock time may exceed CPU time by this factor
START_LIMIT = 120.0  # seconds for a process to import math-verify, which takes one or two where nothing else runs
MAX_CHARACTERS = 200_000  # of a response; only its last ones are sent to a worker


class Question(NamedTuple):
    """What a worker is asked: to grade the answer in a text, in so many seconds of CPU time.

    Without a text, it is asked whether math-verify reads the ground truth rightly.
    """

    ground_truth: str
    text: str | None
    extraction: str
    time_limit: float


FIRST = Question("2", r"\boxed{2}", "evaluation", START_LIMIT)  # fills math-verify's caches, and must be right


class Grade(NamedTuple):
    """A worker's verdict on one answer."""

    accuracy: float = 0.0
    prediction: str = ""  # the answer as it stands in the response, "" where none was found
    failure: str = ""  # the traceback if grading failed. The pool logs it: a worker must not write files
    misread: str = ""  # how math-verify misreads the ground truth, in words; empty if it reads it rightly
    stopped: str = ""  # which limit ended the grading; such an answer counts as wrong


class _Worker:
    """One grading process, which starts when it is first needed, and again after it has ended."""

    connection: Connection  # this end of the connection to the process
    process: subprocess.Popen[bytes] | None = None
    has_started: bool  # whether the process, or the last one, has graded FIRST

    def ask(self, question: Question, seconds: float) -> Grade:
        """Grade one answer; a CalledProcessError if the process has ended by itself, or was killed."""
        if self.process is None or self.process.poll() is not None:
            self._start()
        return self._exchange(question, seconds)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.connection.close()
            self.process = None

    def _start(self) -> None:
        self.has_started = False
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cw_plugin.lab.rewards.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        first = self._exchange(FIRST, START_LIMIT)
        if first.stopped:
            raise GradingError(
                f"a grading process does not start in {START_LIMIT:g} s",
                fix="the machine is too busy, end other programs",
            )
        if first.accuracy != 1.0:  # a grader that fails on everything would make every answer wrong
            self.end()
            reason = (first.failure.strip().splitlines() or ["without an error"])[-1]
            raise GradingError(
                f"a grading process finds {FIRST.text} wrong for {FIRST.ground_truth} ({reason})",
                fix=f"install the versions of math-verify and its packages that it needs: {how_to_install('reward')}",
            )
        self.has_started = True

    def _exchange(self, question: Question, seconds: float) -> Grade:
        assert self.process is not None
        grade: Grade | None = None
        try:
            self.connection.send(question)
            if self.connection.poll(seconds):
                grade = self.connection.recv()
        except (EOFError, OSError):
            raise subprocess.CalledProcessError(self.process.wait(), self.process.args) from None
        finally:
            if grade is None:  # also after a Ctrl-C: what came later would be taken for the next question's grade
                self.end()
        return grade or Grade(stopped=f"it took more than {seconds:g} s")


class GradingPool:
    """Grades answers in worker processes, which start with the first answers and end with this process.

    Args:
        time_limit: seconds of CPU time for one answer. The wall-clock limit is ten times as long.
        workers: processes; by default one for each CPU, at most four, because verl has several actors that grade.
    """

    def __init__(self, time_limit: float = TIME_LIMIT, workers: int | None = None):
        self.time_limit = time_limit
        self.workers = workers or min(4, len(os.sched_getaffinity(0)))
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        for _ in range(self.workers):
            self._idle.put(_Worker())

    def grade(self, ground_truth: str, text: str, extraction: str = "evaluation") -> Grade:
        """Grade one answer; blocks the calling thread, and may be called from many.

        An answer that takes too long counts as wrong. So does one on which grading fails, or which ends processes until
        the wall-clock limit; these two cases are logged. Where a process was killed for another reason, another one
        grades the answer: at once, and then after pauses that grow.

        Raises:
            GradingError: no process starts, so the answer is not the cause.
        """
        grade = self._answer(Question(ground_truth, text[-MAX_CHARACTERS:], extraction, self.time_limit))
        if grade.failure:
            logger.warning(
                "Grading %.200r against the ground truth %.200r failed, so it counts as wrong. If this repeats, check "
                "the machine's free memory, and install the version of math-verify that pyproject.toml names. %s",
                text,
                ground_truth,
                grade.failure,
            )
        return grade

    def read(self, ground_truth: str) -> Grade:
        """A grade whose ``misread``, ``failure`` or ``stopped`` says why no answer can be graded against this one."""
        return self._answer(Question(ground_truth, None, "evaluation", self.time_limit))

    def _answer(self, question: Question) -> Grade:
        """The grade, from another process each time that one was killed; none is asked after the wall-clock limit."""
        worker = self._idle.get()  # may wait for long, which is not the answer's time
        try:
            return self._ask(worker, question)
        finally:
            self._idle.put(worker)

    def _ask(self, worker: _Worker, question: Question) -> Grade:
        limit = WALL_FACTOR * self.time_limit
        deadline = time.monotonic() + limit
        pause = 0.0
        while True:
            try:
                return worker.ask(question, limit)
            except subprocess.CalledProcessError as ended:
                code = ended.returncode  # negative, and the number of the signal, if a signal ended it
                is_last = time.monotonic() + pause > deadline
                if code == -signal.SIGVTALRM:
                    return Grade(stopped=f"it took more than {self.time_limit:g} s of CPU time")
                if not worker.has_started and (is_last or code >= 0):
                    raise GradingError(
                        f"no grading process starts (exit code {code})",
                        fix=f"check that the machine has free memory and that {sys.executable} has math-verify: "
                        f"{how_to_install('reward')}",
                    ) from None
                if is_last:
                    return Grade(failure=f"Grading processes ended on it for {limit:g} s (exit code {code}).")
            time.sleep(pause)
            pause = 0.25 if pause == 0 else 2 * pause

    def close(self) -> None:
        """End the workers, each after the answer that it has; a later grade starts new ones."""
        for worker in [self._idle.get() for _ in range(self.workers)]:
            worker.end()
            self._idle.put(worker)


_shared: dict[float, GradingPool] = {}
os.register_at_fork(after_in_child=_shared.clear)  # a fork starts its own


def shared_pool(time_limit: float = TIME_LIMIT) -> GradingPool:
    """This process's pool for ``time_limit``."""
    return _shared.setdefault(time_limit, GradingPool(time_limit))  # a pool that is not asked starts no process
