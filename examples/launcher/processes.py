"""Ends processes together with everything that they have started. For supervise.py, run_guarded.py and launch.py.

Only for Linux. It needs the standard library of Python 3.8 alone: scripts run it before anything is installed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

SET_PDEATHSIG, SET_NAME, SET_CHILD_SUBREAPER = 1, 15, 36  # linux/prctl.h
ENDING = "cw-ending"  # the name, in /proc/PID/comm, of a process that was stopped and ends those below it
GRACE = 5  # seconds between SIGTERM and SIGKILL
GIVE_UP = 20  # seconds after which it is left to Linux to end what still waits for a disk
LINGER = 10  # seconds that are left to what a command that has ended itself started, W&B's upload for one
STOPS = (signal.SIGINT, signal.SIGTERM)


def _prctl(option: int, value: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Linux sends this process the signal ``number`` when its parent has ended. For ``preexec_fn``."""
    _prctl(SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """A descendant of this process becomes its child when the parent between them ends, as Ray's daemons detach."""
    _prctl(SET_CHILD_SUBREAPER, 1)


def descendants() -> list[int]:
    """The process ids of all processes below this one that have not ended."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":
                children[int(parent)].append(int(stat.parent.name))
    found = list(children[os.getpid()])
    for pid in found:  # which grows
        found += children[pid]
    return found


def end_descendants() -> None:
    """End the processes below this one, including those that start meanwhile."""

    def send(number: int) -> None:
        for pid in descendants():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    began = time.monotonic()
    send(signal.SIGTERM)
    while descendants() and time.monotonic() < began + GIVE_UP:
        if time.monotonic() > began + GRACE:
            send(signal.SIGKILL)
        time.sleep(0.1)
    with suppress(ChildProcessError):  # reap them
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Stopped(KeyboardInterrupt):
    """SIGTERM, or Ctrl-C, by the number ``signal``."""

    def __init__(self, number: int):
        super().__init__(number)
        self.signal = number

    def end(self) -> NoReturn:
        """End this process by the signal, which tells a shell that a loop around it should end as well."""
        sys.stdout.flush()
        signal.signal(self.signal, signal.SIG_DFL)
        os.kill(os.getpid(), self.signal)
        raise AssertionError("the signal is blocked")


def _stop(number: int, _: Any) -> NoReturn:
    for one in STOPS:  # several may come: from the terminal, and from what called this
        signal.signal(one, signal.SIG_IGN)
    _prctl(SET_NAME, ENDING.encode())  # by which folder_lock.py knows that the folder will soon be free
    raise Stopped(number)


@contextmanager
def ending_descendants() -> Iterator[None]:
    """After the block, end all processes below this one. In it, SIGTERM and Ctrl-C raise :class:`Stopped`.

    Stopped is a KeyboardInterrupt, and is also raised where Ctrl-C was ignored. For the main thread of a program, which
    ends soon after the block: from then on, it ignores both signals.
    """
    for number in STOPS:
        signal.signal(number, _stop)
    adopt_orphans()
    try:
        yield
    finally:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        end_descendants()
