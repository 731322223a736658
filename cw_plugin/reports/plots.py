"""Figures. Lines differ in brightness and dashes, so that they can be distinguished in grey."""

from __future__ import annotations

import difflib
import functools
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from cw_plugin.errors import ReportError
from cw_plugin.files import write_whole
from cw_plugin.reports.curves import CURVES
from cw_plugin.reports.distribution import Distribution
from cw_plugin.reports.evaluations import VALIDATION, Evaluation
from cw_plugin.reports.runs import Run
from cw_plugin.reports.statistics import score, student

_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#00304d", "linestyle": "-"},
    {"color": "#e07b00", "linestyle": "--"},
    {"color": "#3a9d5d", "linestyle": "-."},
    {"color": "#b45fa0", "linestyle": ":"},
    {"color": "#7f7f7f", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
    {"color": "#a6cee3", "linestyle": (0, (8, 2))},
)


Interval = tuple[float, float, float]  # mean, low, high


def _figure(title: str, x: str, y: str, width: float = 6.4) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, 3.8), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _style(index: int) -> dict[str, Any]:
    return {**_STYLES[index % len(_STYLES)], "linewidth": 1.6}


def save(figure: Figure, path: Path, formats: Sequence[str]) -> list[Path]:
    """Write ``path`` with each of the suffixes png, svg, pdf; the same figure gives the same bytes.

    Raises:
        ReportError: the files cannot be written.
    """
    written = []
    for kind in formats:
        target = path.with_name(f"{path.name}.{kind}")
        metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
        draw = functools.partial(figure.savefig, format=kind, dpi=160, metadata=metadata)
        try:
            with matplotlib.rc_context({"svg.hashsalt": "cw-grpo"}):  # else its identifiers are random
                write_whole(target, draw)
        except OSError as error:
            raise ReportError(f"{target} cannot be written ({error.strerror}); give another place with --out") from None
        written.append(target)
    return written


def svg(figure: Figure) -> str:
    """The figure as an element for a page of HTML."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def named(runs: Sequence[Run], name: str, window: int = 1) -> list[Figure]:
    """The figures of a metric: a name in :data:`CURVES`, "accuracy" (a figure per validation set), "forecast" (a figure
    per run), or any metric in verl's logs.

    Raises:
        ReportError: no run logged the metric.
    """
    if name == "forecast":
        order = list(dict.fromkeys(run.name for run in runs))
        return [forecast(run, order.index(run.name)) for run in runs]
    if name == "accuracy":
        found = accuracy_metrics(runs)
        if not found:
            raise ReportError(
                "the runs logged no validation accuracy (val-core/.../acc/mean@N); train with trainer.test_freq"
            )
        return [accuracy(runs, metric, accuracies(runs, metric), window) for metric in found]
    return [curve(runs, *CURVES.get(name, (name, name, "")), window)]


def accuracies(
    runs: Sequence[Run], metric: str, answers: Sequence[Evaluation] = (), common_start: bool = False
) -> dict[tuple[str, int], Interval]:
    """An accuracy at each name and step, with its 95% interval: over seeds, else over the questions of one validation.

    Args:
        answers: of validations, one for each name and step (``tables.merge_seeds``), and at the common start "".
        common_start: all runs start from one model, so that each has the mean of all at step 0.

    Returns:
        Name and step -> (mean, low, high). low and high are nan where there is neither a second seed nor answers.
    """
    logged: dict[tuple[str, int], list[float]] = defaultdict(list)
    for run in runs:
        for step, value in run.metrics.get(metric, {}).items():
            logged["" if common_start and step == 0 else run.name, step].append(value)
    given = {(each.name, each.step or 0): score(each.accuracy[VALIDATION]) for each in answers}
    found: dict[tuple[str, int], Interval] = {}
    for (name, step), values in logged.items():
        mean, graded = float(np.mean(values)), given.get((name, step))
        interval = mean, float("nan"), float("nan")
        # The answers of all validation sets are in one file, so that they are of this set only if their mean is its.
        if graded and abs(graded.mean - mean) < 1e-4 and (len(values) == 1 or not name):
            interval = mean, graded.low, graded.high
        elif len(values) > 1:
            of_seeds = student(mean, float(stats.sem(values)), len(values) - 1, "over seeds")
            interval = mean, max(0.0, of_seeds.low), min(1.0, of_seeds.high)
        found |= {(each, step): interval for each in ([name] if name else {run.name for run in runs})}
    return found


def accuracy(
    runs: Sequence[Run], metric: str, intervals: Mapping[tuple[str, int], Interval], window: int = 1
) -> Figure:
    """A validation accuracy over steps, with bands of what :func:`accuracies` gives; none if it is smoothed."""
    source, answers = metric.removeprefix("val-core/").split("/acc/")
    title = f"Accuracy on {source}, {answers}"
    return curve(runs, metric, title, "accuracy", window, intervals if window == 1 else None)


def curve(
    runs: Sequence[Run],
    metric: str,
    title: str,
    unit: str,
    window: int = 1,
    intervals: Mapping[tuple[str, int], Interval] | None = None,
) -> Figure:
    """A metric over steps, one line for each name; a name has its colour also where others did not log the metric.

    Runs of one name (seeds) are shown by their mean, with a band of one standard deviation (n - 1) to either side, at
    the steps that all of them have. The legend explains the band, and says how many steps are left out.

    Args:
        window: steps of a moving average.
        intervals: mean, low and high by name and step, to be shown instead.

    Raises:
        ReportError: no run logged the metric.
    """
    order = list(dict.fromkeys(run.name for run in runs))
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.metrics.get(metric):
            by_name[run.name].append(run)
    if not by_name:
        known = sorted({key for run in runs for key in run.metrics if not key.startswith("val-")})
        near = difflib.get_close_matches(metric, [*CURVES, "accuracy", "forecast", *known], 3, 0.5) or known[:10]
        short = ", ".join([*CURVES, "accuracy", "forecast"])
        raise ReportError(f"no run logged {metric}; did you mean {', '.join(near)}? Short names: {short}")
    figure, axes = _figure(title, "training step", unit)
    axes.locator_params(axis="x", integer=True)
    for name, seeds in by_name.items():
        style = _style(order.index(name))
        of_each = [set(run.metrics[metric]) for run in seeds]
        steps = np.array(sorted(set.intersection(*of_each)))
        if not len(steps):
            raise ReportError(f"the runs named {name} have no step of {metric} in common; give them different names")
        label = name if len(seeds) == 1 else f"{name} ({len(seeds)} seeds)"
        if left_out := len(set.union(*of_each)) - len(steps):
            label = f"{label[:-1]}; left out: {left_out} step{'s' * (left_out > 1)} that only some have)"
        values = np.array([[run.metrics[metric][step] for step in steps] for run in seeds])
        values = np.array([smooth(row, window) for row in values])
        mean = values.mean(0)
        spread = values.std(0, ddof=1) if len(seeds) > 1 else np.full(len(steps), np.nan)
        low, high = mean - spread, mean + spread
        if intervals is not None:
            mean, low, high = np.array([intervals[name, step] for step in steps]).T
        marker: dict[str, Any] = {"marker": "o", "markersize": 3} if len(steps) <= 20 else {}
        axes.plot(steps, mean, label=label, **style, **marker)
        if np.isfinite(low).any():
            axes.fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
    band = "band: ± 1 standard deviation over seeds" if intervals is None else "band: 95% interval"
    band = band if len(axes.collections) else ""
    if len(axes.lines) > 3:  # too many to leave room within
        figure.set_figwidth(figure.get_figwidth() + 2.4)
        figure.legend(frameon=False, loc="outside right upper", title=band, title_fontsize="small")
    else:
        axes.legend(frameon=False, title=band, title_fontsize="small")
    return figure


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last ``window`` values, of fewer at the beginning."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    start = np.maximum(np.arange(1, len(values) + 1) - window, 0)
    return (sums[1:] - sums[start]) / (np.arange(1, len(values) + 1) - start)


def accuracy_metrics(runs: Sequence[Run]) -> list[str]:
    """Names of the validation accuracies that the runs logged."""
    names = {key for run in runs for key in run.metrics}
    return sorted(key for key in names if key.startswith("val-core/") and "/acc/mean@" in key)


def contributions(distributions: Mapping[str, Distribution], names: Sequence[str] = ()) -> Figure:
    """Figure 3: the share of each side's covariance that the most extreme tokens hold.

    Args:
        names: all methods of the page, whose order sets their colours; by default those of ``distributions``.
    """
    colour = list(names or distributions)
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    for place, (sign, label) in enumerate(((1, "positive"), (-1, "negative")), 1):
        axes = figure.add_subplot(1, 2, place, title=f"Tokens of {label} covariance", xscale="log")
        axes.set_xlabel("most extreme tokens, share")
        axes.set_ylabel("share of the side's covariance")
        axes.grid(alpha=0.25, linewidth=0.6)
        for name, distribution in distributions.items():
            side = distribution.side(sign)
            if len(side.tokens):
                # A thousand points are enough for a curve; the first tokens count most.
                shown = np.unique(np.geomspace(1, len(side.tokens), 1000).astype(int)) - 1
                share, held = side.tokens / side.tokens[-1], side.covariance / side.covariance[-1]
                axes.plot(share[shown], held[shown], label=name, **_style(colour.index(name)))
        axes.legend(frameon=False)
    return figure


def weight_curve(distributions: Mapping[str, Distribution], names: Sequence[str] = ()) -> Figure:
    """The mean weight of tokens by their covariance; ``names`` as in :func:`contributions`."""
    colour = list(names or distributions)
    figure, axes = _figure(
        "Weight of a token", "covariance c of the token (linear up to 0.1, then logarithmic)", "mean weight"
    )
    axes.set_xscale("symlog", linthresh=0.1)
    for name, tokens in distributions.items():
        # Each point is the mean over a fiftieth of a side's tokens.
        for sign in (-1, 1):
            chosen = np.flatnonzero(sign * tokens.covariance > 0)
            chosen = chosen[np.argsort(tokens.covariance[chosen])]
            if not len(chosen):
                continue
            count, weight, covariance = (values[chosen] for values in (tokens.count, tokens.weight, tokens.covariance))
            group = (np.cumsum(count) * 50 // count.sum()).astype(int)
            _, where = np.unique(group, return_inverse=True)
            counts, weights, covariances = (np.bincount(where, x) for x in (count, count * weight, count * covariance))
            label: dict[str, Any] = {"label": name} if sign > 0 else {}
            axes.plot(covariances / counts, weights / counts, **label, **_style(colour.index(name)))
    axes.axhline(1.0, color="#999999", linewidth=0.8)
    axes.legend(frameon=False)
    return figure


def forecast(run: Run, index: int = 0) -> Figure:
    """Each step's change of entropy against the forecast, before and after reweighting, with their correlation.

    Forecast and change are measured on the same batch, so its sampling noise alone makes them correlate. The second r
    avoids this: it uses the change from the previous batch to the next batch.

    Raises:
        ReportError: the run logged no forecast.
    """
    if len(run.metrics.get("cw_grpo/entropy_forecast", {})) < 3:
        raise ReportError(
            f"{run.path} has fewer than three steps with cw_grpo/entropy_forecast; train with adv_estimator=cw_grpo, "
            "for plain GRPO with +algorithm.cw_grpo.kernel=none as well"
        )
    change = run.metrics["cw_grpo/entropy_change"]
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    titles = {"cw_grpo/entropy_forecast_grpo": "before reweighting", "cw_grpo/entropy_forecast": "after reweighting"}
    for place, (metric, title) in enumerate(titles.items(), 1):
        steps, predicted = run.series(metric)
        measured = np.array([change.get(step, np.nan) for step in steps])
        around = measured + np.array([change.get(step - 1, np.nan) for step in steps])
        both, all_three = (np.isfinite(values) & np.isfinite(predicted) for values in (measured, around))
        r, r_around = correlation(predicted[both], measured[both]), correlation(predicted[all_three], around[all_three])
        axes = figure.add_subplot(1, 2, place)
        axes.set_title(f"{title}: r = {r:.2f}, {both.sum()} steps\naround the batch: r = {r_around:.2f}")
        axes.set_xlabel("forecast -η Cov(log π, A), nats")
        axes.set_ylabel("measured change of entropy, nats")
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.axvline(0, color="#999999", linewidth=0.8)
        axes.scatter(predicted[both], measured[both], s=12, color=_style(index)["color"])
        axes.ticklabel_format(style="sci", axis="x", scilimits=(-2, 3))
    figure.suptitle(run.name)
    return figure


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's r; nan where one of them does not vary."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])
