"""What a check of a configuration of verl finds."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something in a configuration that is wrong, or could be better."""

    what: str  # what is wrong, and the value seen
    fix: str  # what to do about it, most often the override to set
    fatal: bool = True  # the run would fail, or train something other than intended; other findings are advice


def said(error: BaseException) -> str:
    """The message of an error that was raised, in one line; of a bare ``assert``, its source, which names a setting."""
    message = " ".join(str(error).split())
    return message or str(traceback.extract_tb(error.__traceback__)[-1].line)


def error_of(load: Callable[[], object]) -> str | None:
    """What is said if something cannot be loaded; None if it can. It may be the user's own, and raise anything."""
    try:
        load()
    except Exception as error:
        return said(error)
    return None
