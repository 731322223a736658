"""The studies' tables in Markdown, as their pages README.md have them."""

import html
import re
from collections.abc import Iterable

from cw_plugin.lab.reports.table_formats import Table

# What Markdown would take for a mark, except code (`x`) and underscores within a word, which are common in names.
MARKS = re.compile(r"([\\|*$]|(?<!\w)_|_(?!\w)|(?<=\])\()")


def markdown(table: Table) -> str:
    """The table with title and notes. HTML and Markdown in names and settings are escaped."""
    header = row(table.frame.columns)
    rule = row(["---", *["---:"] * (len(table.frame.columns) - 1)])
    rows = [row(cells) for cells in table.shown().to_numpy().tolist()]
    notes = [f"{escaped(note)}  " for note in table.notes]  # two spaces end the line
    return "\n".join([f"**{escaped(table.title)}**", "", header, rule, *rows, "", *notes]).rstrip() + "\n"


def row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escaped(cell) for cell in cells) + " |"


def escaped(text: str) -> str:
    """Plain text, so that Markdown shows it as it is."""
    return MARKS.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
