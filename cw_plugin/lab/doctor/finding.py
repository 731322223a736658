"""What a check of a configuration of verl finds."""

from dataclasses import dataclass


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
