"""What a check of a configuration of verl finds."""

from typing import NamedTuple


class Finding(NamedTuple):
    """``fatal``: the run would fail, or train something other than intended. Other findings are advice."""

    what: str
    fix: str
    fatal: bool = True
