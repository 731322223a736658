"""What a check of the doctor reports."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Something that is wrong, or worth knowing.

    Attributes:
        what: what was found, and why it matters.
        fix: the override, or command, that fixes it.
        fatal: whether the run would fail, or train something other than intended. Other findings are advice.
    """

    what: str
    fix: str
    fatal: bool = True
