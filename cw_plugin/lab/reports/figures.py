"""Figures, by matplotlib; figures.mplstyle says how they look."""

import functools
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from cw_plugin.files import write_whole
from cw_plugin.lab.reports.covariance import one_side

FAINT = "#8a8a8e"
LOOK = matplotlib.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g}%")
_METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def style(place: int) -> dict[str, Any]:
    """Keywords for the line of the method at this place of the page, from 0."""
    styles = list(LOOK["axes.prop_cycle"])
    return {**styles[place % len(styles)], "linewidth": 1.6}


@matplotlib.rc_context(LOOK)
def new(title: str, x: str, y: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """Make a figure with one pair of axes; ``size`` in inches."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.add_subplot(title=title, xlabel=x, ylabel=y)


@matplotlib.rc_context(LOOK)
def legend(figure: Figure, lines: Mapping[str, Line2D]) -> None:
    """Write the names of the lines below the figure's axes, where no data is."""
    width = int(figure.get_figwidth() * 13)  # in letters
    longest = max(map(len, lines), default=0)
    columns = max(1, width // (longest + 8))
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
    """Draw a metric over steps, with a line for each name.

    It is the mean of the name's seeds at the steps that all of them have, with a band of one standard deviation (n - 1)
    to either side.

    Args:
        series: name -> the values of each run of it, by step, with nan where a value is not finite: a line ends where a
            run of it has no finite values any more. A name without values has a colour, but no line.
        title: of the figure.
        unit: the label of the y-axis.
        window: steps of a moving average.
        percent: whether the values are shares, to be shown in per cent.
        size: of the figure, in inches.
    """
    figure, axes = new(title, "training step", unit, size)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if percent:
        axes.yaxis.set_major_formatter(PERCENT)
    lines = {}
    for place, name in enumerate(series):
        runs = [run for run in series[name] if len(run)]
        if not runs:
            continue
        seeds = pd.concat(runs, axis=1, join="inner").sort_index()
        smooth = seeds.rolling(window, min_periods=1).mean()[seeds.notna().all(axis=1)]
        mean, spread = smooth.mean(axis=1), smooth.std(axis=1)
        look = style(place)
        marker = "o" if len(mean) <= 20 else ""
        (lines[name],) = axes.plot(mean.index, mean, **look, marker=marker, markersize=3)
        if len(runs) > 1:
            axes.fill_between(mean.index, mean - spread, mean + spread, color=look["color"], alpha=0.18, linewidth=0)
    legend(figure, lines)
    return figure


@matplotlib.rc_context(LOOK)
def contributions(tokens: Mapping[str, pd.DataFrame], names: Sequence[str] = ()) -> Figure:
    """Draw Figure 3: the share of each side's covariance that its most extreme tokens hold.

    ``tokens`` has those of each method, as in :func:`.covariance.one_side`. The order of all methods' ``names`` sets
    the colours.
    """
    order = list(dict.fromkeys([*names, *tokens]))
    lines = {}
    figure = Figure(figsize=(6.8, 2.9), layout="constrained")
    left = figure.add_subplot(1, 2, 1, title="Positive covariance", ylabel="share of the sum")
    right = figure.add_subplot(1, 2, 2, title="Negative covariance")
    for axes, sign in ((left, 1), (right, -1)):
        axes.set(xscale="log", xlabel="most extreme tokens")
        axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_formatter(PERCENT)
        for name, frame in tokens.items():
            side = one_side(frame, sign)[["tokens", "held"]]
            # A thousand points are enough for a curve; the first tokens count most.
            places = np.unique(np.geomspace(1, max(1, len(side)), 1000).astype(int)) - 1
            share = (side / side.max()).reindex(places)
            (lines[name],) = axes.plot(share.tokens, share.held, **style(order.index(name)))
    legend(figure, lines)
    return figure


@matplotlib.rc_context(LOOK)
def save(figure: Figure, path: Path, formats: Sequence[str] = ("svg", "pdf")) -> None:
    """Write ``path`` with each suffix (an OSError if that fails); the same figure gives the same bytes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in a name; the browser has it
        for kind in formats:
            target = path.with_name(f"{path.name}.{kind}")
            write_whole(target, functools.partial(figure.savefig, format=kind, metadata=_METADATA[kind]))
            figure.set_layout_engine("none")  # what is placed stays, which saves a third of the time
