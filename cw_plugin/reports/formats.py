"""A table as a page, a paper, a spreadsheet and a terminal want it, by pandas."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

# What Markdown would take for a mark: but for code (`x`) and underscores within a word, which are common in names.
_MARKDOWN = re.compile(r"([\\|*$]|(?<!\w)_|_(?!\w)|(?<=\])\()")

_ONE = r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?"
_NUMBER = re.compile(rf"-|{_ONE}( [a-z]+)?( \[{_ONE}, {_ONE}\])?\*?")  # also -6.8 points [-9.1, -4.5]


@dataclass(frozen=True)
class Table:
    """A table: the name of its files, its title, and sentences below it. The frame's first column names the row; its
    index is not shown. Text is shown as it is, None and nan as a dash."""

    name: str
    title: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def _shown(self) -> pd.DataFrame:
        return self.frame.map(lambda v: "-" if pd.isna(v) else f"{v:.4g}" if isinstance(v, float) else str(v))

    def html(self) -> str:
        """The ``<table>`` alone."""
        return self._shown().to_html(index=False, border=0, justify="unset")

    def text(self) -> str:
        """The rows for a terminal, without the first column's header."""
        return self._shown().set_index(self.frame.columns[0]).rename_axis(None).to_string()

    def markdown(self) -> str:
        """With title and notes. HTML and Markdown in names and settings are escaped."""
        shown = self._shown()
        rule = ["---", *["---:"] * (len(shown.columns) - 1)]
        rows = [[markdown(cell) for cell in row] for row in (shown.columns, *shown.to_numpy().tolist())]
        lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]
        notes = [f"{markdown(note)}  " for note in self.notes]
        return "\n".join([f"**{markdown(self.title)}**", "", *lines, "", *notes]).rstrip() + "\n"

    def csv(self) -> str:
        """Without title and notes."""
        return csv(self.frame)

    def latex(self) -> str:
        """A ``tabular`` for the package booktabs; title and notes are comments."""
        columns = "l" + "r" * (len(self.frame.columns) - 1)
        text = self._shown().to_latex(index=False, escape=True, column_format=columns)
        comments = "".join(f"% {' '.join(line.split())}\n" for line in (self.title, *self.notes))
        return comments + text.replace("≥", r"$\ge$").replace("≤", r"$\le$")


def csv(frame: pd.DataFrame) -> str:
    """CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front."""

    def safe(value: Any) -> Any:
        formula = isinstance(value, str) and value[:1] in tuple("=+-@\t\r") and not _NUMBER.fullmatch(value)
        return f"'{value}" if formula else value

    shown = frame.rename(columns=safe).apply(lambda column: column.map(safe))
    return shown.to_csv(index=False, lineterminator="\n")


def markdown(text: str) -> str:
    """Plain text so that Markdown shows it as it is."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])
