"""Child processes that end with their parent, whatever ends it, and with them everything that they have started.

Only for Linux. It needs the standard library of Python 3.8 alone: scripts run it before anything is installed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

SET_PDEATHSIG, SET_NAME, SET_CHILD_SUBREAPER = 1, 15, 36  # linux/prctl.h
ENDING = "cw-ending"  # the name, in /proc/PID/comm, of a process that was stopped and ends those below it
GRACE = 5  # seconds between SIGTERM and SIGKILL
GIVE_UP = 20  # seconds after which it is left to Linux to end what still waits for a disk
STOPS = (signal.SIGINT, signal.SIGTERM)


def _prctl(option: int, value: int | bytes) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Linux sends this process the signal ``number`` when its parent has ended. For ``preexec_fn``."""
    _prctl(SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """A descendant of this process becomes its child when the parent between them ends."""
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
    """SIGTERM, or Ctrl-C.

    Attributes:
        signal: its number.
    """

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
def guarded(command: Sequence[str], keep: Sequence[int] = (), **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, and end it with all that it has started when the block or this process ends, however it ends.

    In the block, SIGTERM and Ctrl-C raise :class:`Stopped`, a KeyboardInterrupt, also where Ctrl-C was ignored. The
    command is in a session of its own, and reads nothing. To be used in the main thread, of a process without other
    children: after the block, none is left.

    Args:
        keep: open files that the command inherits.
        settings: of subprocess.Popen, such as ``stdout``.

    Yields:
        The process of guard.py. It ends when the command and what it has started have ended. Its exit code is the
        command's, 128 + N where the signal N ended the command, and negative where guard.py itself was killed.
    """
    before = {number: signal.signal(number, _stop) for number in STOPS}
    adopt_orphans()
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
    guard = subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True, pass_fds=keep, **settings)
    assert guard.stdin is not None
    try:
        with suppress(BrokenPipeError):  # killed already
            guard.stdin.write(json.dumps(list(command)).encode() + b"\n")
            guard.stdin.flush()
        yield guard
    finally:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        guard.stdin.close()  # which tells the guard
        guard.wait()
        end_descendants()  # whatever a guard that was killed has left
        for number, handler in before.items():
            signal.signal(number, handler)
