"""A table as a page, a paper, a spreadsheet and a terminal want it, by pandas."""

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

# What Markdown would take for a mark, except code (`x`) and underscores within a word, which are common in names.
_MARKDOWN = re.compile(r"([\\|*$]|(?<!\w)_|_(?!\w)|(?<=\])\()")

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

    def _shown(self) -> pd.DataFrame:
        return self.frame.map(_cell)

    def html(self) -> str:
        """The ``<table>`` alone."""
        return str(self._shown().to_html(index=False, border=0, justify="unset"))

    def text(self) -> str:
        """The rows for a terminal, without the first column's header."""
        return str(self._shown().set_index(self.frame.columns[0]).rename_axis(None).to_string())

    def markdown(self) -> str:
        """The table with title and notes. HTML and Markdown in names and settings are escaped."""
        shown = self._shown()
        title = f"**{markdown(self.title)}**"
        header = _markdown_row(markdown(name) for name in shown.columns)
        rule = _markdown_row(["---", *["---:"] * (len(shown.columns) - 1)])
        rows = [_markdown_row(markdown(cell) for cell in row) for row in shown.to_numpy().tolist()]
        notes = [f"{markdown(note)}  " for note in self.notes]  # two spaces end the line
        return "\n".join([title, "", header, rule, *rows, "", *notes]).rstrip() + "\n"

    def csv(self) -> str:
        """The table without title and notes."""
        return csv(self.frame)

    def latex(self) -> str:
        """A ``tabular`` for the package booktabs; title and notes are comments."""
        columns = "l" + "r" * (len(self.frame.columns) - 1)
        text = str(self._shown().to_latex(index=False, escape=True, column_format=columns))
        comments = "".join(f"% {' '.join(line.split())}\n" for line in (self.title, *self.notes))
        return comments + text.replace("≥", r"$\ge$").replace("≤", r"$\le$")


def _cell(value: object) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def csv(frame: pd.DataFrame) -> str:
    """CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front."""
    safe = frame.rename(columns=_no_formula).apply(lambda column: column.map(_no_formula))
    return str(safe.to_csv(index=False, lineterminator="\n"))


def _no_formula(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def markdown(text: str) -> str:
    """Escape plain text, so that Markdown shows it as it is."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
