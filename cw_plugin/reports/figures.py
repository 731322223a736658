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
from typing import Any, cast

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
STYLES: tuple[tuple[str, Any], ...] = (
    ("#00304d", "-"),
    ("#e07b00", (0, (4, 1.5))),
    ("#3a9d5d", (0, (5, 1.5, 1, 1.5))),
    ("#b45fa0", (0, (1, 1.2))),
    ("#7f7f7f", (0, (5, 1, 1, 1, 1, 1))),
    ("#6baed6", (0, (8, 2))),
)

_FONT: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 10, "text.color": INK, "axes.titlecolor": INK,
    "axes.labelcolor": INK, "axes.edgecolor": FAINT, "xtick.color": FAINT, "ytick.color": FAINT,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": FAINT,
    "text.parse_math": False,  # a $ in a name is a $
    "svg.hashsalt": "cw-grpo",  # else its identifiers are random
}  # fmt: skip


def style(place: int) -> dict[str, Any]:
    """Keywords for the line of the method at this place (from 0) of the page."""
    colour, dashes = STYLES[place % len(STYLES)]
    return {"color": colour, "linestyle": dashes, "linewidth": 1.6}


def new(title: str, x: str, y: str = "", size: tuple[float, float] = (3.4, 2.5)) -> tuple[Figure, Axes]:
    """A figure with one pair of axes; ``size`` in inches."""
    with matplotlib.rc_context(_FONT):
        figure = Figure(figsize=size, layout="constrained")
        return figure, _axes(figure, 1, 1, 1, title, x, y)


def _axes(figure: Figure, rows: int, columns: int, place: int, title: str, x: str, y: str) -> Axes:
    axes = figure.add_subplot(rows, columns, place, xlabel=x, ylabel=y)
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
    with matplotlib.rc_context(_FONT):
        columns = max(1, int(figure.get_figwidth() * 13 // (max(map(len, names), default=0) + 8)))
        # Labels are set afterwards: matplotlib leaves out those that begin with an underscore.
        box = figure.legend(lines, ["x"] * len(names), loc="outside lower left", ncols=columns, frameon=False)
        for text, name in zip(box.get_texts(), names, strict=True):
            text.set_text(name)


def curves(
    series: Mapping[str, Sequence[pd.Series]],
    title: str,
    unit: str = "",
    window: int = 1,
    percent: bool = False,
    names: Sequence[str] | None = None,
    size: tuple[float, float] = (3.4, 2.5),
) -> Figure:
    """A metric over steps: a line for each name, the mean of its seeds at the steps that all of them have, with a band
    of one standard deviation (n - 1) to either side.

    Args:
        series: name -> the values of each run of it, by step. A name without values has no line.
        window: steps of a moving average.
        names: all names of the page, whose order sets their colours; by default those of ``series``.
    """
    order = list(names if names is not None else series)
    figure, axes = new(title, "training step", unit, size)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    shown = [name for name in order if any(len(run) for run in series.get(name, ()))]
    for name in shown:
        seeds = pd.concat([run for run in series[name] if len(run)], axis=1, join="inner").sort_index()
        smooth = seeds.rolling(window, min_periods=1).mean()
        mean, spread, look = smooth.mean(axis=1), smooth.std(axis=1), style(order.index(name))
        marker: dict[str, Any] = {"marker": "o", "markersize": 3} if len(mean) <= 20 else {}
        axes.plot(mean.index, mean, **look, **marker)
        if seeds.shape[1] > 1:
            axes.fill_between(mean.index, mean - spread, mean + spread, color=look["color"], alpha=0.18, linewidth=0)
    legend(figure, shown, [order.index(name) for name in shown])
    return figure


def contributions(tokens: Mapping[str, pd.DataFrame], names: Sequence[str] | None = None) -> Figure:
    """Figure 3: the share of each side's covariance that its most extreme tokens hold.

    Args:
        tokens: of each method its tokens, in the columns covariance (c) and count; a row may stand for several tokens.
        names: as in :func:`curves`.
    """
    order = list(names if names is not None else tokens)
    with matplotlib.rc_context(_FONT):
        figure = Figure(figsize=(6.8, 2.9), layout="constrained")
        for place, (sign, label) in enumerate(((1, "Positive"), (-1, "Negative")), 1):
            x, y = "most extreme tokens", "share of the sum" if place == 1 else ""
            axes = _axes(figure, 1, 2, place, f"{label} covariance", x, y)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
            for name, frame in tokens.items():
                side = one_side(frame, sign)
                if len(side):
                    # A thousand points are enough for a curve; the first tokens count most.
                    at = np.unique(np.geomspace(1, len(side), 1000).astype(int)) - 1
                    share = (side.tokens / side.tokens.iloc[-1]).iloc[at]
                    axes.plot(share, (side.held / side.held.iloc[-1]).iloc[at], **style(order.index(name)))
    legend(figure, list(tokens), [order.index(name) for name in tokens])
    return figure


def weights(tokens: Mapping[str, pd.DataFrame], names: Sequence[str] | None = None) -> Figure:
    """The mean weight of tokens by their covariance; each point is the mean of a fiftieth of a side's tokens.

    Args:
        tokens: as in :func:`contributions`, with the column weight.
        names: as in :func:`curves`.
    """
    order = list(names if names is not None else tokens)
    figure, axes = new("Weight of a token", "covariance c", "mean weight")
    with matplotlib.rc_context(_FONT):
        axes.set_xscale("symlog", linthresh=0.1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axhline(1.0, color=FAINT, linewidth=0.8)
    for name, frame in tokens.items():
        frame = frame.assign(count=frame.get("count", 1)).sort_values("covariance")
        for sign in (-1, 1):
            side = frame[sign * frame.covariance > 0]
            fiftieth = (side["count"].cumsum() * 50 // max(1, side["count"].sum())).astype(int)
            sums = side[["covariance", "weight"]].mul(side["count"], axis=0).groupby(fiftieth).sum()
            mean = sums.div(side["count"].groupby(fiftieth).sum(), axis=0)
            axes.plot(mean.covariance, mean.weight, **style(order.index(name)))
    legend(figure, list(tokens), [order.index(name) for name in tokens])
    return figure


@contextmanager
def _drawing() -> Iterator[None]:
    with matplotlib.rc_context(_FONT), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in a name; the browser has it
        yield


def save(figure: Figure, path: Path, formats: Sequence[str] = ("svg", "pdf")) -> list[Path]:
    """Write ``path`` with each of the suffixes svg, pdf, png; the same figure gives the same bytes.

    Raises:
        OSError: a file cannot be written.
    """
    dates = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    written = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for target, kind in zip(written, formats, strict=True):
        draw = functools.partial(figure.savefig, format=kind, dpi=160, metadata=dates[kind])
        with _drawing():
            write_whole(target, draw)
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
    out = io.StringIO()
    with _drawing(), matplotlib.rc_context(cast(Any, {"svg.fonttype": "none"})):
        figure.patch.set_alpha(0)
        for axes in figure.axes:
            axes.patch.set_alpha(0)
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()[out.getvalue().index("<svg") :]
    for place, (colour, _) in enumerate(STYLES):
        text = text.replace(colour, f"var(--line-{place})")
    text = text.replace(INK, "var(--ink)").replace(FAINT, "var(--faint)")
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
