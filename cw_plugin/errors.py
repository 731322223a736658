"""The errors this package raises; each message says what to change."""


class CWGRPOError(Exception):
    """Base class of every error raised on purpose by cw_plugin."""


class NonFiniteError(CWGRPOError, ValueError):
    """A valid token carries NaN or an infinity.

    Attributes:
        rows: indices of the offending rows in the batch that was passed in.
    """

    def __init__(self, what: str, rows: list[int], hint: str = ""):
        self.what = what
        self.rows = rows
        shown = ", ".join(map(str, rows[:20])) + (", ..." if len(rows) > 20 else "")
        super().__init__(f"{what} is NaN or infinite at a valid token of {len(rows)} row(s): {shown}.{hint}")


class OptionsError(CWGRPOError, ValueError):
    """A configuration value that cannot work, with the values that do."""


class GroundTruthError(CWGRPOError, TypeError):
    """A ground truth that is neither text nor a finite number, with the data it comes from."""


class HostError(CWGRPOError, RuntimeError):
    """The installed verl (or vLLM) does not have the shape this package was written for."""


class MissingLogProbsError(HostError):
    """The trainer did not hand log-probs to the estimator, so no weight can be computed."""


class ReportError(CWGRPOError, ValueError):
    """A run, evaluation or record that cannot be read, with what to change."""


class NoMetricsError(ReportError):
    """A folder without any logger's files, which may hold something else."""


def first_line(error: BaseException) -> str:
    """What an error of another package says, in short; its class where it says nothing."""
    return _lines(error)[0]


def last_line(error: BaseException) -> str:
    """The same of an error whose text is a traceback."""
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]
