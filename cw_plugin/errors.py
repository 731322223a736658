"""The errors this package raises. Each message says what is wrong, the value seen, and what to do."""

from collections.abc import Sequence
from typing import ClassVar


class CWGRPOError(Exception):
    """Base class of every error raised on purpose by cw_plugin.

    A subclass may take any arguments. It is pickled by its message and attributes, and unpickled without calling
    ``__init__``, so that it passes through Ray and multiprocessing unchanged.

    Args:
        problem: what is wrong, and the value seen.
        fix: what to do. The message is ``problem; fix``.
    """

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(f"{problem}; {fix}" if fix else problem)
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return type(self).__new__, (type(self), *self.args), self.__dict__


class NonFiniteError(CWGRPOError, ValueError):
    """Values of a valid token are NaN or infinite, or its weighted advantage is.

    Attributes:
        what: which values; if there are several, the first in CAUSES.
        rows: indices of the offending rows in the batch that was passed in.
    """

    CAUSES: ClassVar = {
        "log_probs": "It comes from the model's forward pass; check gradient norm and learning rate of earlier steps.",
        "entropies": "They come from the model's logits, of which some are infinite; check what changes the logits.",
        "advantages": "The reward of a response was not a finite number; check the reward function.",
        "weighted advantages": "Rewards, log-probs or weights are too large; check reward function and weighting.",
    }

    SHOWN: ClassVar = 20  # rows that the message names

    def __init__(self, what: str, rows: list[int], hint: str = "") -> None:
        shown = ", ".join(map(str, rows[: self.SHOWN]))
        if len(rows) > self.SHOWN:
            shown += ", ..."
        where = f"NaN or infinite at a valid token of {len(rows)} row(s): {shown}"
        super().__init__(f"{what}: {where}. {self.CAUSES[what]}{hint}")
        self.what = what
        self.rows = rows

    def named(self, kind: str, names: Sequence[object]) -> "NonFiniteError":
        """The same error, which also says what the host calls these rows: ``kind``, and the name of each row."""
        shown = ", ".join(str(names[row]) for row in self.rows[: self.SHOWN])
        return NonFiniteError(self.what, self.rows, f" Their {kind}: {shown}.")


class OptionsError(CWGRPOError, ValueError):
    """A configuration value that cannot work."""


class HostError(CWGRPOError, RuntimeError):
    """The host lacks, or does not pass, something that this package needs."""


def first_line(error: BaseException) -> str:
    """The first line of another package's error message; the class name if there is no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
