"""Figures, by matplotlib. Lines differ in brightness and dashes, so that they can be told apart in grey."""

from __future__ import annotations

import functools
import html
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # that it builds its cache, the first time

import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: E402

from cw_plugin.files import write_whole  # noqa: E402
from cw_plugin.reports.covariance import one_side  # noqa: E402

INK, FAINT = "#1b1b1d", "#8a8a8e"
STYLES: tuple[tuple[str, Any], ...] = (  # colour, dashes
    ("#00304d", "-"),
    ("#e07b00", (0, (4, 1.5))),
    ("#3a9d5d", (0, (5, 1.5, 1, 1.5))),
    ("#b45fa0", (0, (1, 1.2))),
    ("#7f7f7f", (0, (5, 1, 1, 1, 1, 1))),
    ("#6baed6", (0, (8, 2))),
)
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}%")
_METADATA = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@contextmanager
def _look(**more: Any) -> Iterator[None]:
    ink = ("text.color", "axes.titlecolor", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    faint = ("axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    settings: dict[Any, Any] = dict.fromkeys(ink, INK) | dict.fromkeys(faint, FAINT) | more
    # A $ in a name is a $; and without the salt, an SVG's identifiers are random.
    settings |= {"font.size": 9, "axes.titlesize": 10, "text.parse_math": False, "svg.hashsalt": "cw-grpo"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in a name; the browser has it
        yield


def style(place: int) -> dict[str, Any]:
    """Keywords for the line of the method at this place (from 0) of the page."""
    colour, dashes = STYLES[place % len(STYLES)]
    return {"color": colour, "linestyle": dashes, "linewidth": 1.6}


def new(title: str, x: str, y: str = "", size: tuple[float, float] = (3.4, 2.5)) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; ``size`` in inches."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, _axes(figure, (1, 1, 1), title, x, y)


def _axes(figure: Figure, place: tuple[int, int, int], title: str, x: str, y: str) -> Axes:
    with _look():
        axes = figure.add_subplot(*place, xlabel=x, ylabel=y)
        axes.set_title(title, loc="left")
        axes.grid(axis="y", alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return axes


def legend(figure: Figure, names: Sequence[str], places: Sequence[int] | None = None) -> None:
    """The names with their lines, below the figure's axes, where no data is.

    Args:
        places: of the names' styles, if they are not 0, 1, ...
    """
    lines = [Line2D([], [], **style(place)) for place in (range(len(names)) if places is None else places)]
    columns = max(1, int(figure.get_figwidth() * 13 // (max(map(len, names), default=0) + 8)))
    with _look():
        box = figure.legend(lines, ["x"] * len(names), loc="outside lower left", ncols=columns, frameon=False)
        # Labels are set afterwards: matplotlib leaves out those that begin with an underscore.
        for text, name in zip(box.get_texts(), names, strict=True):
            text.set_text(name)


def curves(
    series: Mapping[str, Sequence[pd.Series]],
    title: str,
    unit: str = "",
    window: int = 1,
    percent: bool = False,
    names: Sequence[str] = (),
    size: tuple[float, float] = (3.4, 2.5),
) -> Figure:
    """A metric over steps: a line for each name, the mean of its seeds at the steps that all of them have, with a band
    of one standard deviation (n - 1) to either side.

    Args:
        series: name -> the values of each run of it, by step. A name without values has no line.
        window: steps of a moving average.
        names: all names of the page, whose order sets their colours; by default those of ``series``.
    """
    figure, axes = new(title, "training step", unit, size)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if percent:
        axes.yaxis.set_major_formatter(PERCENT)
    order = list(names or series)
    shown = [name for name in order if any(len(run) for run in series.get(name, ()))]
    for name in shown:
        seeds = pd.concat([run for run in series[name] if len(run)], axis=1, join="inner").sort_index()
        smooth = seeds.rolling(window, min_periods=1).mean()
        mean, spread, look = smooth.mean(axis=1), smooth.std(axis=1), style(order.index(name))
        axes.plot(mean.index, mean, **look, marker="o" if len(mean) <= 20 else "", markersize=3)
        if seeds.shape[1] > 1:
            axes.fill_between(mean.index, mean - spread, mean + spread, color=look["color"], alpha=0.18, linewidth=0)
    legend(figure, shown, [order.index(name) for name in shown])
    return figure


def contributions(tokens: Mapping[str, pd.DataFrame], names: Sequence[str] = ()) -> Figure:
    """Figure 3: the share of each side's covariance that its most extreme tokens hold.

    Args:
        tokens: of each method its tokens, in the columns covariance (c) and, if a row stands for several, count.
        names: as in :func:`curves`.
    """
    order, figure = list(names or tokens), Figure(figsize=(6.8, 2.9), layout="constrained")
    for place, (sign, title) in enumerate(((1, "Positive covariance"), (-1, "Negative covariance")), 1):
        axes = _axes(figure, (1, 2, place), title, "most extreme tokens", "share of the sum" if place == 1 else "")
        axes.set_xscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PERCENT)
        for name, frame in tokens.items():
            side = one_side(frame, sign)
            # A thousand points are enough for a curve; the first tokens count most.
            at = np.unique(np.geomspace(1, max(1, len(side)), 1000).astype(int)) - 1
            share = (side[["tokens", "held"]] / side[["tokens", "held"]].max()).reindex(at)
            axes.plot(share.tokens, share.held, **style(order.index(name)))
    legend(figure, list(tokens), [order.index(name) for name in tokens])
    return figure


def weights(tokens: Mapping[str, pd.DataFrame], names: Sequence[str] = ()) -> Figure:
    """The mean weight of tokens by their covariance; each point is the mean of a fiftieth of a side's tokens.

    Args:
        tokens: as in :func:`contributions`, with the column weight.
        names: as in :func:`curves`.
    """
    order, (figure, axes) = list(names or tokens), new("Weight of a token", "covariance c", "mean weight")
    axes.set_xscale("symlog", linthresh=0.1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axhline(1.0, color=FAINT, linewidth=0.8)
    for name, frame in tokens.items():
        frame = frame.assign(count=frame.get("count", 1)).sort_values("covariance")
        for sign in (-1, 1):
            side = frame[sign * frame.covariance > 0]
            fiftieth = side["count"].cumsum() * 50 // max(1, side["count"].sum())
            sums = side[["covariance", "weight"]].mul(side["count"], axis=0).groupby(fiftieth).sum()
            mean = sums.div(side["count"].groupby(fiftieth).sum(), axis=0)
            axes.plot(mean.covariance, mean.weight, **style(order.index(name)))
    legend(figure, list(tokens), [order.index(name) for name in tokens])
    return figure


def save(figure: Figure, path: Path, formats: Sequence[str] = ("svg", "pdf")) -> list[Path]:
    """Write ``path`` with each of the suffixes svg, pdf, png; the same figure gives the same bytes.

    Raises:
        OSError: a file cannot be written.
    """
    written = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for target, kind in zip(written, formats, strict=True):
        with _look():
            write_whole(target, functools.partial(figure.savefig, format=kind, dpi=160, metadata=_METADATA[kind]))
            figure.set_layout_engine("none")  # what is placed stays, which saves a third of the time
    figure.set_layout_engine("constrained")
    return written


def inline(figure: Figure, label: str) -> str:
    """The figure as an element of a page, without its legend; its colours follow the page's, light or dark.

    Args:
        label: what a screen reader says.
    """
    for box in list(figure.legends):
        box.remove()
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_alpha(0)
    out = io.StringIO()
    with _look(**{"svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata=_METADATA["svg"])
    text = out.getvalue()[out.getvalue().index("<svg") :].replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    for place, (colour, _) in enumerate(STYLES):
        text = text.replace(colour, f"var(--line-{place})")
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
