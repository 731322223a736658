"""Figures, by matplotlib. Lines differ in brightness and dashes, so that they can be told apart in grey."""

import functools
import logging
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # that it builds its cache, the first time

import matplotlib  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from matplotlib.rcsetup import cycler  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: E402

from cw_plugin.files import write_whole  # noqa: E402
from cw_plugin.reports.covariance import one_side  # noqa: E402

FAINT = "#8a8a8e"
STYLES = cycler(
    color=["#00304d", "#e07b00", "#3a9d5d", "#b45fa0", "#7f7f7f", "#6baed6"],
    linestyle=["-", (0, (4, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2))],
)
LOOK: dict[Any, Any] = {
    "text.parse_math": False,  # a $ in a name is a $
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "cw-grpo",  # without it, an SVG's identifiers are random
    "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.edgecolor": FAINT,
    "axes.grid": True, "axes.grid.axis": "y", "grid.alpha": 0.3, "grid.linewidth": 0.6, "grid.color": FAINT,
    "ytick.major.size": 0, "ytick.minor.size": 0,
}  # fmt: skip
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}%")
_METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def style(place: int) -> dict[str, Any]:
    """Keywords for the line of the method at this place (from 0) of the page."""
    return {**list(STYLES)[place % len(STYLES)], "linewidth": 1.6}


@matplotlib.rc_context(LOOK)
def new(title: str, x: str, y: str = "", size: tuple[float, float] = (3.4, 2.5)) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; ``size`` in inches."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot(title=title, xlabel=x, ylabel=y)


@matplotlib.rc_context(LOOK)
def legend(figure: Figure, lines: Mapping[str, Line2D]) -> None:
    """The names of the lines below the figure's axes, where no data is."""
    width = int(figure.get_figwidth() * 13)  # in letters
    columns = max(1, width // (max(map(len, lines), default=0) + 8))
    labels = [textwrap.fill(name, width - 6) for name in lines]
    figure.legend([*lines.values()], labels, loc="outside lower left", ncols=columns)


def curves(
    series: Mapping[str, Sequence[pd.Series]],
    title: str,
    unit: str = "",
    window: int = 1,
    percent: bool = False,
    size: tuple[float, float] = (3.4, 2.5),
) -> Figure:
    """A metric over steps: of each name, the mean of its seeds at the steps that all of them have, with a band of one
    standard deviation (n - 1) to either side.

    Args:
        series: name -> the values of each run of it, by step, with nan where a value is not finite: a line ends where a
            run of it has no finite values any more. A name without values has a colour, but no line.
        window: steps of a moving average.
    """
    figure, axes = new(title, "training step", unit, size)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if percent:
        axes.yaxis.set_major_formatter(PERCENT)
    lines = {}
    for place, name in enumerate(series):
        if not (runs := [run for run in series[name] if len(run)]):
            continue
        seeds = pd.concat(runs, axis=1, join="inner").sort_index()
        smooth = seeds.rolling(window, min_periods=1).mean()[seeds.notna().all(axis=1)]
        mean, spread, look = smooth.mean(axis=1), smooth.std(axis=1), style(place)
        (lines[name],) = axes.plot(mean.index, mean, **look, marker="o" if len(mean) <= 20 else "", markersize=3)
        if seeds.shape[1] > 1:
            axes.fill_between(mean.index, mean - spread, mean + spread, color=look["color"], alpha=0.18, linewidth=0)
    legend(figure, lines)
    return figure


@matplotlib.rc_context(LOOK)
def contributions(tokens: Mapping[str, pd.DataFrame], names: Sequence[str] = ()) -> Figure:
    """Figure 3: the share of each side's covariance that its most extreme tokens hold. ``tokens``: method -> its
    tokens, as in :func:`.covariance.one_side`. The order of ``names``, of all methods of the page, sets the colours."""
    order, lines = list(dict.fromkeys([*names, *tokens])), {}
    figure = Figure(figsize=(6.8, 2.9), layout="constrained")
    for place, (sign, title) in enumerate(((1, "Positive covariance"), (-1, "Negative covariance")), 1):
        axes = figure.add_subplot(1, 2, place, title=title, xlabel="most extreme tokens", xscale="log")
        axes.set_ylabel("share of the sum" if place == 1 else "")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PERCENT)
        for name, frame in tokens.items():
            side = one_side(frame, sign)
            # A thousand points are enough for a curve; the first tokens count most.
            at = np.unique(np.geomspace(1, max(1, len(side)), 1000).astype(int)) - 1
            share = (side[["tokens", "held"]] / side[["tokens", "held"]].max()).reindex(at)
            (lines[name],) = axes.plot(share.tokens, share.held, **style(order.index(name)))
    legend(figure, lines)
    return figure


@matplotlib.rc_context(LOOK)
def save(figure: Figure, path: Path, formats: Sequence[str] = ("svg", "pdf")) -> list[Path]:
    """Write ``path`` with each suffix (an OSError if that fails); the same figure gives the same bytes."""
    written = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in a name; the browser has it
        for target, kind in zip(written, formats, strict=True):
            write_whole(target, functools.partial(figure.savefig, format=kind, metadata=_METADATA[kind]))
            figure.set_layout_engine("none")  # what is placed stays, which saves a third of the time
    return written
