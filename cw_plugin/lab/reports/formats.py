"""A table as a page, a paper, a spreadsheet and a terminal want it, by pandas."""

import re
from dataclasses import dataclass, field

import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs text that begins like this
_DIGITS = r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?"
_NUMBER = re.compile(rf"-|{_DIGITS}( [a-z]+)?( \[{_DIGITS}, {_DIGITS}\])?\*?")  # also -6.8 points [-9.1, -4.5]


@dataclass(frozen=True)
class Table:
    """A table with its title and its notes.

    Attributes:
        name: the name of its files.
        title: what stands above it.
        frame: the first column names the row; the index is not shown. Text is shown as it is, None and nan as a dash.
        notes: sentences below it.
    """

    name: str
    title: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def shown(self) -> pd.DataFrame:
        """The cells as text."""
        return self.frame.map(_cell)

    def html(self) -> str:
        """The ``<table>`` alone."""
        return str(self.shown().to_html(index=False, border=0, justify="unset"))

    def text(self) -> str:
        """The rows for a terminal, without the first column's header."""
        return str(self.shown().set_index(self.frame.columns[0]).rename_axis(None).to_string())

    def csv(self) -> str:
        """The table without title and notes."""
        return csv(self.frame)

    def latex(self) -> str:
        """A ``tabular`` for the package booktabs; title and notes are comments."""
        columns = "l" + "r" * (len(self.frame.columns) - 1)
        text = str(self.shown().to_latex(index=False, escape=True, column_format=columns))
        comments = "".join(f"% {' '.join(line.split())}\n" for line in (self.title, *self.notes))
        return comments + text.replace("≥", r"$\ge$").replace("≤", r"$\le$")


def _cell(value: object) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def csv(frame: pd.DataFrame) -> str:
    """CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front."""
    safe = frame.rename(columns=_no_formula).apply(lambda column: column.map(_no_formula))
    return str(safe.to_csv(index=False, lineterminator="\n"))


def _no_formula(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
