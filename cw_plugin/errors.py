"""The errors this package raises. Each message says what is wrong, the value seen, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CWGRPOError(Exception):
    """Base class of every error raised on purpose by cw_plugin.

    A subclass may take any arguments: it is pickled by its message and attributes, and its ``__init__`` is not called
    again, so that Ray and multiprocessing hand it over whole.
    """

    def __reduce__(self) -> tuple[Callable[..., CWGRPOError], tuple[Any, ...]]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[CWGRPOError], args: tuple[Any, ...], attributes: dict[str, Any]) -> CWGRPOError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class NonFiniteError(CWGRPOError, ValueError):
    """A valid token carries NaN or an infinity.

    Attributes:
        what: which values.
        rows: indices of the offending rows in the batch that was passed in.
    """

    def __init__(self, what: str, rows: list[int], hint: str = ""):
        self.what = what
        self.rows = rows
        shown = ", ".join(map(str, rows[:20])) + (", ..." if len(rows) > 20 else "")
        super().__init__(f"{what} is NaN or infinite at a valid token of {len(rows)} row(s): {shown}.{hint}")


class OptionsError(CWGRPOError, ValueError):
    """A configuration value that cannot work."""


class GroundTruthError(CWGRPOError, TypeError):
    """A ground truth that is neither text nor a finite number, with the data it comes from."""


class HostError(CWGRPOError, RuntimeError):
    """The installed verl, TRL or vLLM does not have the shape this package was written for."""


class MissingLogProbsError(HostError):
    """The trainer did not hand log-probs to the estimator, so no weight can be computed."""


class GradingError(CWGRPOError, RuntimeError):
    """The grading processes do not run, so nothing can be said about an answer."""


class DataError(CWGRPOError, ValueError):
    """A dataset that cannot be fetched or read, has the wrong content, or cannot be written."""


class EvaluationError(CWGRPOError, ValueError):
    """A model, benchmark or setting that cannot be evaluated, or does not fit the answers that are already there."""


class EngineError(CWGRPOError, RuntimeError):
    """The engine stopped before every answer was graded; the graded ones are kept."""


class ReportError(CWGRPOError, ValueError):
    """A run, evaluation or record that cannot be read or compared."""


class NoMetricsError(ReportError):
    """A folder without any logger's files; it may hold something else."""


def how_to_install(extra: str = "") -> str:
    """The command that installs this package, which is on no package index, or an optional part of it.

    Args:
        extra: "data", "report", "lighteval" or another one of pyproject.toml.
    """
    from cw_plugin import __version__

    part = f"[{extra}]" if extra else ""
    wheel = f"./cw_plugin-{__version__}-py3-none-any.whl"
    return f'pip install ".{part}" in a clone of cw_plugin, or pip install "{wheel}{part}"'


def first_line(error: BaseException) -> str:
    """The first line of another package's error; its class if it has no text."""
    return _lines(error)[0]


def last_line(error: BaseException) -> str:
    """The last line of another package's error, whose text may be a traceback."""
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]
