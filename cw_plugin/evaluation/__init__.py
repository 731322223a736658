"""Benchmarks through verl's own validation, resumable answer by answer; ``cw-grpo evaluate`` is the way in."""

from __future__ import annotations

from cw_plugin.errors import CWGRPOError


class EvaluationError(CWGRPOError, ValueError):
    """A model, a benchmark or a setting that cannot be evaluated, or not together with what is there already."""


class EngineError(CWGRPOError, RuntimeError):
    """The engine stopped before every answer was graded; those that were are kept."""
