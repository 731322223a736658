"""What a check of the doctor reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or worth knowing.

    Attributes:
        check: a short name.
        what: what was found.
        why: why it matters.
        fix: the override, or command, that fixes it.
        fatal: whether the run would fail, or train something other than intended. Other findings are advice.
    """

    check: str
    what: str
    why: str
    fix: str
    fatal: bool = True
