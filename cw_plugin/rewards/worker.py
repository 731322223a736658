"""What a grading process runs: one answer at a time, within limits that the kernel enforces.

CPU time is limited twice. At the limit SIGPROF raises an exception, which ends most long computations and keeps the
process, whose caches are worth seconds. That does not stop a loop in C; a second later SIGVTALRM ends the process.
Both count only the CPU time of this process, so a right answer is not graded as wrong because the machine is busy.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import sys
import traceback
from typing import NamedTuple

MEMORY_LIMIT = 2 << 30  # bytes of address space; an idle worker has about 0.3 GiB
MAX_PREDICTION = 500  # characters of an answer in the report


class Grade(NamedTuple):
    """A worker's verdict on one answer.

    Attributes:
        accuracy: 0.0 or 1.0.
        prediction: the answer as it stands in the response, "" where none was found.
        failure: the traceback if grading failed. The pool logs it: a worker must not write files, and in a Ray actor
            stderr is one.
        stopped: which limit ended the grading, "" if none did. Such an answer counts as wrong.
    """

    accuracy: float
    prediction: str
    failure: str = ""
    stopped: str = ""


def stopped(why: str) -> Grade:
    return Grade(0.0, "", stopped=why)


GRACE = 1.0  # seconds of CPU time from the exception to the end of the process


class OutOfTimeError(BaseException):
    """Not a subclass of Exception: math-verify and sympy catch those, and continue."""


def main() -> None:
    """Grade what comes through stdin until the parent, whose process id is the argument, has ended."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii", buffering=1)
    os.dup2(2, 1)  # what a library prints goes where stderr goes: nowhere
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end ends this process
    try:
        limit_process()
    except Exception as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), file=answers)
        return
    print(json.dumps(""), file=answers)
    while os.getppid() == int(sys.argv[1]):
        # A fork of the parent keeps the pipe open, so that its end is no sign of the parent's.
        if select.select([0], [], [], 5.0)[0]:
            line = sys.stdin.buffer.readline()
            if not line:
                return
            print(json.dumps(grade(*json.loads(line))), file=answers)


def limit_process() -> None:
    """Import math-verify and let it fill its caches, then set the limits of this process."""
    from cw_plugin.rewards import grading

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own timeouts are off
    grading.grade("2", r"\boxed{1}", "evaluation")
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
    _limit(resource.RLIMIT_AS, MEMORY_LIMIT)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CORE, 0)


def grade(ground_truth: str, text: str, extraction: str, time_limit: float) -> Grade:
    """Grade one answer within ``time_limit`` seconds of CPU time; runs in the main thread, which gets the signals."""
    from cw_plugin.rewards import grading

    try:
        # Repeated, in case some code in between catches everything.
        signal.setitimer(signal.ITIMER_PROF, time_limit, time_limit)
        signal.setitimer(signal.ITIMER_VIRTUAL, time_limit + GRACE)
        accuracy, prediction = grading.grade(ground_truth, text, extraction)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return Grade(accuracy, prediction[:MAX_PREDICTION])
    except OutOfTimeError:
        return stopped(f"it took more than {time_limit:g} s of CPU time")
    except (MemoryError, RecursionError) as error:
        return stopped(f"it needed more memory or deeper recursion than a grading process has ({type(error).__name__})")
    except Exception:  # sympy may raise anything on an unusual answer
        return Grade(0.0, "", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _out_of_time(signum: int, frame: object) -> None:
    raise OutOfTimeError


def _limit(which: int, soft: int) -> None:
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


if __name__ == "__main__":
    main()
