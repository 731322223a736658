"""Runs a Python module, such as verl's trainer, in a process that ends with this one."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from cw_plugin.errors import HostError

TAIL = 12  # lines of a module's output that are shown if it fails


def run_module(*words: str, log: Path) -> None:
    """Run ``python -m WORDS`` with its output in ``log``; a HostError if it fails.

    However this process ends, Linux then kills the module's. Ray's daemons ask Linux for the same, and Ray's workers
    end with these.
    """
    this_process = os.getpid()
    with log.open("wb") as output:
        ended = subprocess.run(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: _end_with(this_process),
        )
    if ended.returncode:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:])
        raise HostError(f"{words[0]} ended with exit code {ended.returncode}. Its output, {log}, ends:\n{end}")


def _end_with(parent: int) -> None:
    """Have Linux kill this process, which has just been forked, when its parent ends."""
    set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before Linux knew
        os._exit(1)
