"""Child processes that end with their parent, also when it is killed. Only for Linux."""

import ctypes
import signal

SET_PDEATHSIG, SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Linux sends this process the signal ``number`` when its parent has ended. For ``preexec_fn``."""
    _prctl(SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """A descendant of this process becomes its child when the parent between them ends."""
    _prctl(SET_CHILD_SUBREAPER, 1)
