"""Open-RS and the five benchmarks of the paper as parquet files for verl; ``cw-grpo prepare`` is the way in."""

from __future__ import annotations

from cw_plugin.errors import CWGRPOError


class DataError(CWGRPOError, ValueError):
    """Data that cannot be had, is not what it should be, or cannot be written."""
