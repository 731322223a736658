"""What becomes of published training commands, a module for each framework: ``judge`` gives the :class:`Verdict`."""

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """A column of the table."""

    WORKS = "one line works"
    REFUSED = "refused"
    NOT_SERVED = "not served"
    BROKEN = "does not compose, unchanged"
    UNKNOWN = "cannot be told here"
    SILENT = "silently wrong"


@dataclass(frozen=True)
class Verdict:
    """Of one command; the reason is one sentence, or empty where one line alone works."""

    outcome: Outcome
    reason: str = ""
