"""Runs a Python module, such as verl's trainer, in a process that ends when this one is stopped."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from cw_plugin.errors import HostError

TAIL = 12  # lines of a module's output that are shown if it fails
GRACE = 10  # seconds between SIGTERM and SIGKILL
GIVE_UP = 20  # seconds after which it is left to Linux to end what still waits for a disk
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, and the end of a terminal


class _Stopped(BaseException):
    """This process was stopped by a signal, whose number is ``args[0]``."""


def run_module(*words: str, log: Path) -> None:
    """Run ``python -m WORDS`` with its output in ``log``; a HostError if it fails.

    If this process is stopped meanwhile, it first ends the module with all that the module has started, Ray's daemons
    and workers included: they are in one session, though not in one process group. Then it ends by the signal, which
    tells a shell that a loop around it should end as well. Only for Linux, and to be called in the main thread.
    """
    command = [sys.executable, "-m", *words]
    before = {number: signal.getsignal(number) for number in STOPS}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            for number, handler in before.items():
                if handler is not signal.SIG_IGN:  # as nohup has it ignored
                    signal.signal(number, _stop)
            code = process.wait()
        except _Stopped as stopped:
            _end_session(process)
            _end_by(stopped.args[0])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if code:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:])
        raise HostError(f"{words[0]} ended with exit code {code}. Its output, {log}, ends:\n{end}")


def _stop(number: int, _: FrameType | None) -> NoReturn:
    for each in STOPS:  # several may come: from the terminal, and from what called this
        signal.signal(each, signal.SIG_IGN)
    raise _Stopped(number)


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    began = time.monotonic()
    number = signal.SIGTERM
    while pids := _processes_of_session(process.pid):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.2)
        seconds = time.monotonic() - began
        if seconds > GIVE_UP:
            return
        number = signal.SIGKILL if seconds > GRACE else signal.SIGTERM


def _processes_of_session(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, _, its_session = stat.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                pids.append(int(stat.parent.name))
    return pids


def _end_by(number: int) -> NoReturn:
    sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise AssertionError("the signal is blocked")
