"""What a grading process runs: one answer at a time, within limits that the kernel enforces.

CPU time is limited twice. At the limit SIGPROF raises an exception, which ends most long computations and keeps the
process, whose caches are worth seconds. That does not stop a loop in C; a second later SIGVTALRM ends the process.
Both count only the CPU time of this process, so a right answer is not graded as wrong because the machine is busy.
"""

import logging
import os
import resource
import signal
import sys
import traceback
from multiprocessing.connection import Connection

from cw_plugin.lab.rewards import grading, ground_truth
from cw_plugin.lab.rewards.pool import Grade, Question

LIMITS = {resource.RLIMIT_AS: 2 << 30, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}  # bytes; idle, it has 0.3 GiB
GRACE = 1.0  # seconds of CPU time from the exception to the end of the process
MAX_PREDICTION = 500  # characters of an answer in the report


class OutOfTimeError(BaseException):
    """Not a subclass of Exception: math-verify and sympy catch those, and continue."""


def main() -> None:
    """Grade what comes through a connection until the parent has ended.

    The program's arguments are the connection's file descriptor and the parent's process number.
    """
    connection, parent = Connection(int(sys.argv[1])), int(sys.argv[2])
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own timeouts are off
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end ends this process
    signal.signal(signal.SIGPROF, _out_of_time)
    for which, limit in LIMITS.items():
        hard = resource.getrlimit(which)[1]
        resource.setrlimit(which, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    while os.getppid() == parent:  # a fork of the parent may keep the connection open
        if connection.poll(5.0):
            connection.send(grade(connection.recv()))


def grade(question: Question) -> Grade:
    """Grade one answer within its seconds of CPU time; runs in the main thread, which gets the signals."""
    time_limit = question.time_limit
    try:
        # Repeated, in case some code in between catches everything.
        signal.setitimer(signal.ITIMER_PROF, time_limit, time_limit)
        signal.setitimer(signal.ITIMER_VIRTUAL, time_limit + GRACE)
        if question.text is None:
            return Grade(misread=ground_truth.misread(question.ground_truth))
        accuracy, prediction = grading.grade(question.ground_truth, question.text, question.extraction)
        return Grade(accuracy, prediction[:MAX_PREDICTION])
    except OutOfTimeError:
        return Grade(stopped=f"it took more than {time_limit:g} s of CPU time")
    except (MemoryError, RecursionError) as error:
        return Grade(stopped=f"it needs more memory or recursion than a grading process has ({type(error).__name__})")
    except Exception:  # sympy may raise anything on an unusual answer
        return Grade(failure=traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _out_of_time(signum: int, frame: object) -> None:
    raise OutOfTimeError


if __name__ == "__main__":
    main()
