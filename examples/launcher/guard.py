"""Runs one command, and ends all of its processes when the launcher, launch.py, has ended, `kill -9` included.

The command is a line of JSON on standard input, which closes when the launcher ends. Processes that detach themselves,
as Ray's daemons do, stay children of this one: it adopts orphans. It has its own session, and a command line without
the command, so that neither a terminal's signals nor `pkill -f main_ppo` end it. If it is killed all the same, Linux
kills the command, and the launcher adopts and ends the rest. All three hold the lock on the run's folder.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from cw_plugin.child_processes import adopt_orphans, end_with_parent

LINGER = 10  # seconds that are left to what a command that has ended itself started, W&B's upload for one
GRACE = 5  # seconds between SIGTERM and SIGKILL


def descendants() -> list[psutil.Process]:
    """All processes below this one that have not ended."""
    running = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def end_all() -> None:
    """End the processes below this one, including those that start meanwhile."""
    deadline = time.monotonic() + GRACE
    for process in descendants():
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    while left := descendants():
        for process in left if time.monotonic() > deadline else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.1)
    with suppress(ChildProcessError):  # reap them
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the command would inherit SIG_IGN
    adopt_orphans()
    words = json.loads(sys.stdin.readline())
    try:  # close_fds=False: the command holds the folder's lock, too
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL, close_fds=False, preexec_fn=end_with_parent)
    except OSError as error:
        print(f"{words[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    ended = None
    while not select.select([sys.stdin], [], [], 0.2)[0]:  # the launcher has not gone: it writes nothing more
        if command.poll() is not None:
            ended = ended or time.monotonic()
            if not descendants() or time.monotonic() > ended + LINGER:
                break
    end_all()
    code = command.returncode
    return 1 if code is None else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
