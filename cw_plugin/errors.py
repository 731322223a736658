"""The errors this package raises. Each message says what is wrong, the value seen, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CWGRPOError(Exception):
    """Base class of every error raised on purpose by cw_plugin.

    A subclass may take any arguments. It is pickled by its message and attributes, and unpickled without calling
    ``__init__``, so that it passes through Ray and multiprocessing unchanged.
    """

    def __reduce__(self) -> tuple[Callable[..., CWGRPOError], tuple[Any, ...]]:
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[CWGRPOError], args: tuple[Any, ...], attributes: dict[str, Any]) -> CWGRPOError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(attributes)
    return error


class NonFiniteError(CWGRPOError, ValueError):
    """Values of a valid token are NaN or infinite, or its weighted advantage is.

    Attributes:
        what: which values.
        rows: indices of the offending rows in the batch that was passed in.
    """

    def __init__(self, what: str, rows: list[int], hint: str = ""):
        self.what = what
        self.rows = rows
        shown = ", ".join(map(str, rows[:20])) + (", ..." if len(rows) > 20 else "")
        super().__init__(f"{what}: NaN or infinite at a valid token of {len(rows)} row(s): {shown}.{hint}")


class OptionsError(CWGRPOError, ValueError):
    """A configuration value that cannot work."""


class GroundTruthError(CWGRPOError, TypeError):
    """A ground truth that is neither text nor a finite number, with the data it comes from."""


class HostError(CWGRPOError, RuntimeError):
    """The installed verl, TRL or vLLM lacks something that this package needs."""


class MissingLogProbsError(HostError):
    """The trainer did not pass log-probs to the estimator, so no weights can be computed."""


class GradingError(CWGRPOError, RuntimeError):
    """The grading processes do not run, so the answer cannot be graded."""


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
    """The command that installs this package, or an optional part of it. The package is not on a package index.

    Args:
        extra: an extra of pyproject.toml, such as "data" or "report".
    """
    from cw_plugin import __version__

    part = f"[{extra}]" if extra else ""
    wheel = f"./cw_plugin-{__version__}-py3-none-any.whl"
    return f'pip install ".{part}" in a clone of cw_plugin, or pip install "{wheel}{part}"'


def first_line(error: BaseException) -> str:
    """The first line of another package's error message; the class name if there is no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
