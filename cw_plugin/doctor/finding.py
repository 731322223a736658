"""What a check of the doctor says."""

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
        fatal: the run would fail, or train something else than was asked for. Others are advice.
    """

    check: str
    what: str
    why: str
    fix: str
    fatal: bool = True
