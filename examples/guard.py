"""Run one command, and end all of its processes when the launcher, launch.py, has ended.

The command is one line of JSON on standard input. When that input closes, the launcher has ended, for whatever reason,
`kill -9` included. Processes that detach themselves, as Ray's daemons do, stay children of this one: it is
their subreaper. It inherits the lock on the run's folder, so the lock is released after the last of them.

It is a separate file in its own session, and its command line is empty. So neither a terminal's signals nor `pkill -f
launch.py` nor `pkill -f main_ppo` end it.
"""

from __future__ import annotations

import ctypes
import json
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
LINGER = 10  # seconds that are left to what a command that has ended itself started, W&B's upload for one
GRACE = 5  # seconds between SIGTERM and SIGKILL


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def launcher_has_gone(seconds: float) -> bool:
    """Whether it has, or goes within so many seconds; it writes nothing after the command."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def end_all() -> None:
    """End processes until none is left, including those that start meanwhile."""
    left = descendants()
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(left, timeout=GRACE)
    while left := descendants():
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the command would inherit SIG_IGN
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return 1
    command = subprocess.Popen(json.loads(line), stdin=subprocess.DEVNULL)
    try:
        while command.poll() is None and not launcher_has_gone(0.2):
            pass
        linger = time.monotonic() + LINGER
        while descendants() and time.monotonic() < linger and not launcher_has_gone(0.2):
            pass
    finally:
        end_all()
    code = command.returncode
    return 1 if code is None else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
