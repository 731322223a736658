"""A table as a page, a paper, a spreadsheet and a terminal want it, by pandas."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

MISSING = "-"
# What Markdown would take for a mark: but for code (`x`) and underscores within a word, which are common in names.
_MARKDOWN = re.compile(r"([\\|*$]|(?<!\w)_|_(?!\w)|(?<=\])\()")
_LATEX = {"≥": r"$\ge$", "≤": r"$\le$", "±": r"$\pm$", "π": r"$\pi$", "Σ": r"$\Sigma$"}


@dataclass(frozen=True)
class Table:
    """A table with its caption.

    Attributes:
        name: of its files.
        title: the caption's first line.
        frame: the first column names the row; its index is not shown. Text is shown as it is, None and nan as a dash.
        notes: sentences below it.
    """

    name: str
    title: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def _shown(self) -> pd.DataFrame:
        return self.frame.astype(object).where(self.frame.notna(), MISSING).map(_text)

    def html(self) -> str:
        """The ``<table>`` alone."""
        return self._shown().to_html(index=False, border=0, classes=None, justify="unset")

    def text(self) -> str:
        """The rows for a terminal."""
        rows = [list(self._shown().columns), *self._shown().to_numpy().tolist()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
        return "\n".join("  ".join(row) for row in aligned)

    def markdown(self) -> str:
        """With title and notes. HTML and Markdown in names and settings are escaped."""
        shown = self._shown()
        rule = ["---", *["---:"] * (len(shown.columns) - 1)]
        rows = [[markdown(_text(cell)) for cell in row] for row in (shown.columns, *shown.to_numpy().tolist())]
        lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]
        notes = [f"{markdown(note)}  " for note in self.notes]
        return "\n".join([f"**{markdown(self.title)}**", "", *lines, "", *notes]).rstrip() + "\n"

    def csv(self) -> str:
        """Without title and notes. A text that a spreadsheet would run as a formula begins with an apostrophe."""
        frame = self.frame.rename(columns=_no_formula)
        return frame.map(_no_formula).to_csv(index=False, lineterminator="\n")

    def latex(self) -> str:
        """A ``table`` with its caption; it needs the package booktabs."""
        shown = self._shown()
        columns = "l" + "r" * (len(shown.columns) - 1)
        text = shown.map(_latex).rename(columns=_latex).to_latex(index=False, column_format=columns)
        body = "\n".join(["\\begin{table}", "\\centering", text.rstrip()])
        caption = _latex(" ".join([f"{self.title}.", *self.notes]))
        return f"{body}\n\\caption{{{caption}}}\n\\end{{table}}\n"


def markdown(text: str) -> str:
    """Plain text so that Markdown shows it as it is."""
    return _MARKDOWN.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))


def listed(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + [*words[-1:]])


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _no_formula(value: Any) -> Any:
    if not isinstance(value, str) or value == MISSING or value[:1] not in tuple("=+-@\t\r"):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def _latex(text: Any) -> str:
    escaped = re.sub(r"[&%$#_{}]", r"\\\g<0>", _text(text).replace("\\", "\0"))
    escaped = escaped.replace("\0", r"\textbackslash{}").replace("~", r"\textasciitilde{}")
    escaped = escaped.replace("^", r"\textasciicircum{}")
    return "".join(_LATEX.get(character, character) for character in escaped)
