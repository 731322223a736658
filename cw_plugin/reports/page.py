"""One self-contained HTML page: no script, no other file, no network."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from matplotlib.figure import Figure

from cw_plugin.reports.plots import svg
from cw_plugin.reports.tables import Table
from cw_plugin.reports.verdict import Verdict

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
.table { overflow-x: auto; margin: 1.5rem 0; }
table { border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: 0.4rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead { border-top: 2px solid #1b1b1b; border-bottom: 1px solid #1b1b1b; }
tbody { border-bottom: 2px solid #1b1b1b; } tbody tr:nth-child(even) { background: #f4f4f4; }
.note { font-size: 0.85rem; color: #555; margin: 0.3rem 0; }
.verdict dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.5rem 1.2rem; max-width: 62rem; }
.verdict dt { font-weight: 600; } .verdict dd { margin: 0; overflow-wrap: anywhere; }
.verdict dt:first-of-type + dd { font-size: 1.1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1rem 2rem; }
figure { margin: 0; } figure svg { max-width: 100%; height: auto; }
figcaption { font-size: 0.85rem; color: #555; max-width: 34rem; }
@media (max-width: 40rem) {
  .verdict dl { grid-template-columns: minmax(0, 1fr); } .verdict dd { margin-bottom: 0.6rem; }
  table { font-size: 0.75rem; } th, td { padding: 0.3rem; } th:first-child, td:first-child { padding-left: 0; }
}
"""


def page(
    title: str,
    verdict: Verdict,
    figures: Sequence[tuple[Figure, str]],
    tables: Sequence[Table],
    notes: Sequence[str] = (),
    links: Mapping[str, str] | None = None,
) -> str:
    """The page's text.

    Args:
        figures: each with its caption.
        links: file -> what it is; files beside the page.
    """

    def element(figure: Figure, caption: str) -> str:
        return f"<figure>{svg(figure)}<figcaption>{html.escape(caption)}</figcaption></figure>"

    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p class=note>{html.escape(note)}</p>" for note in notes),
        verdict.html(),
        *(f'<p><a href="{quote(file)}">{html.escape(what)}</a></p>' for file, what in (links or {}).items()),
        "<h2>Training</h2><div class=figures>" if figures else "",
        *(element(figure, caption) for figure, caption in figures),
        "</div>" if figures else "",
        "<h2>Tables</h2>" if tables else "",
        *(table.html() for table in tables),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"
