"""A table as a page, a spreadsheet and a terminal want it, by pandas."""

from dataclasses import dataclass, field

import pandas as pd


@dataclass(frozen=True)
class Table:
    """A table with its title and its notes. Text is shown as it is, None and nan as a dash."""

    name: str  # of its files
    title: str
    frame: pd.DataFrame  # the first column names the row; the index is not shown
    notes: list[str] = field(default_factory=list)  # sentences below it

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
        return str(self.frame.to_csv(index=False, lineterminator="\n"))


def _cell(value: object) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
