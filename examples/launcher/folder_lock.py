"""A run's folder has one owner at a time: the process that locks its file ``.lock``, and what inherits the lock.

    python folder_lock.py FOLDER FD

is for shell scripts, which open FOLDER/.lock as the file descriptor FD: see ../claim.sh. What such a script starts
finds the folder in the environment variable CW_PLUGIN_FOLDER, and may claim it again. It needs the standard library
alone.
"""

import fcntl
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from processes import ENDING

ELSEWHERE = "name another folder (RUN=... or OUT=...)"
PATIENCE = 30  # seconds in which the processes of an owner that was killed, or is being stopped, end


class FolderError(Exception):
    """A folder that a run cannot have. The message says why, and what to do."""


def write_error(folder: Path) -> str | None:
    """Why no megabyte can be written there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"
    return None


def claim(folder: Path, elsewhere: str = ELSEWHERE) -> TextIO:
    """Create a folder if it is missing, and lock it for this process and those that inherit the lock.

    The lock lasts until the last of them has ended, or has closed the file that is returned. A folder that the script
    above this process has locked is left to that script. ``elsewhere`` says, for the error's message, what to do if
    another process has the folder, or if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a+")  # noqa: SIM115 - it stays open
    except FileExistsError:
        raise FolderError(f"{folder} is a file, or a link to a folder that is not there: {elsewhere}") from None
    except OSError as error:
        raise FolderError(f"{folder} cannot be written ({error.strerror}): {elsewhere}") from None
    of_script = os.environ.get("CW_PLUGIN_FOLDER")
    if of_script is None or folder.resolve() != Path(of_script).resolve():
        hold(folder, lock, elsewhere)
    return lock


def hold(folder: Path, lock: TextIO, elsewhere: str = ELSEWHERE) -> None:
    """:func:`claim` for a lock file that is open already."""
    deadline = time.monotonic() + PATIENCE
    while not _try_to_lock(folder, lock):
        lock.seek(0)
        pid, _, host = lock.read().strip().partition(" on ")
        is_ending = not pid or (host == platform.node() and _ends_or_has_ended(pid))
        if not is_ending or time.monotonic() > deadline:
            raise FolderError(f"{folder} is in use by process {pid} on {host}: wait for its end, or {elsewhere}")
        time.sleep(0.2)
    if error := write_error(folder):
        raise FolderError(f"{error}. Make room, or {elsewhere}")
    lock.seek(0)
    lock.truncate(0)
    owner = os.environ.get("CW_PLUGIN_SCRIPT", os.getpid())  # the script that has started this (supervise.py)
    print(owner, "on", platform.node(), file=lock, flush=True)


def _ends_or_has_ended(pid: str) -> bool:
    try:
        name = Path("/proc", pid, "comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return name.strip() == ENDING


def _try_to_lock(folder: Path, lock: TextIO) -> bool:
    """False if another process has the lock. Where the file system has no locks, it warns, and the folder is free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        print(f"{folder} cannot be locked ({error.strerror}): start no second run in it.", file=sys.stderr)
    return True


def main() -> None:
    """Lock the folder of this program's arguments, or print why not, and exit with code 2."""
    folder, descriptor = Path(sys.argv[1]), int(sys.argv[2])
    with open(descriptor, "r+", closefd=False) as lock:
        try:
            hold(folder, lock)
        except FolderError as error:
            print(error, file=sys.stderr)
            sys.exit(2)


if __name__ == "__main__":
    main()
