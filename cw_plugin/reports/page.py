"""One self-contained HTML page: no script, no other file, no network."""

from __future__ import annotations

import html
from collections.abc import Sequence

from matplotlib.figure import Figure

from cw_plugin.reports.plots import svg
from cw_plugin.reports.tables import Table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
.table { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.4rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead { border-top: 2px solid #1b1b1b; border-bottom: 1px solid #1b1b1b; }
tbody { border-bottom: 2px solid #1b1b1b; } tbody tr:nth-child(even) { background: #f4f4f4; }
.note { font-size: 0.85rem; color: #555; margin: 0.3rem 0; }
figure { margin: 1.5rem 0; } figure svg { max-width: 100%; height: auto; }
"""


def page(title: str, tables: Sequence[Table], figures: Sequence[Figure], notes: Sequence[str] = ()) -> str:
    """The page's text."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p class=note>{html.escape(note)}</p>" for note in notes),
        *(table.html() for table in tables),
        *(f"<figure>{svg(figure)}</figure>" for figure in figures),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"
