"""Runs a Python module, such as verl's trainer, in a process that ends when this one is stopped."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from cw_plugin.errors import HostError

TAIL = 12  # lines of a module's output that are shown if it fails
GRACE = 10  # seconds between SIGTERM and SIGKILL
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, and the end of a terminal


class _Stopped(BaseException):
    """This process was stopped by a signal, whose number is ``args[0]``."""


def run_module(*words: str, log: Path) -> None:
    """Run ``python -m WORDS`` with its output in ``log``; a HostError if it fails.

    If this process is stopped meanwhile, it first ends the module with all that the module has started, Ray's daemons
    included: they are in one process group. Then it ends by the signal, which tells a shell that a loop around it
    should end as well. To be called in the main thread.
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
            _end_group(process)
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


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        os.killpg(process.pid, signal.SIGKILL)


def _end_by(number: int) -> NoReturn:
    sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise AssertionError("the signal is blocked")
