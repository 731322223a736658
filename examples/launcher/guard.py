"""Run one command, and end all of its processes when the launcher, launch.py, has ended.

The command is one line of JSON on standard input. When that input closes, the launcher has ended, for whatever reason,
`kill -9` included. Processes that detach themselves, as Ray's daemons do, stay children of this one: it adopts orphans.
It is a separate file in its own session, and its command line is empty. So neither a terminal's signals nor `pkill -f
launch.py` nor `pkill -f main_ppo` end it. If it is killed all the same, Linux kills the command, and the launcher
adopts and ends the rest. All three hold the lock on the run's folder.
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

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LINGER = 10  # seconds that are left to what a command that has ended itself started, W&B's upload for one
GRACE = 5  # seconds between SIGTERM and SIGKILL


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def adopt_orphans() -> None:
    """What this process starts stays below it, also when the process between them has ended."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """For ``preexec_fn``: Linux kills this process when its parent has ended."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants() -> list[psutil.Process]:
    """All processes below this one that have not ended."""
    running = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


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


def launcher_has_gone(seconds: float) -> bool:
    """Whether it has, or goes within so many seconds; it writes nothing after the command."""
    return bool(select.select([sys.stdin], [], [], seconds)[0])


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the command would inherit SIG_IGN
    adopt_orphans()
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        return 1
    words = json.loads(line)
    try:  # close_fds=False: the command holds the folder's lock, too
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL, close_fds=False, preexec_fn=end_with_parent)
    except OSError as error:
        print(f"{words[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
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
