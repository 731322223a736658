"""What a check of a configuration of verl finds."""

import traceback
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """Something in a configuration that is wrong, or could be better.

    Attributes:
        what: what is wrong, and the value seen.
        fix: what to do about it, most often the override to set.
        fatal: the run would fail, or train something other than intended. Other findings are advice.
    """

    what: str
    fix: str
    fatal: bool = True


def said(error: BaseException) -> str:
    """An error's message in one line; of a bare ``assert``, its source, which has the name of a setting."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if message or not frames:
        return message
    return f"{frames[-1].line} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
