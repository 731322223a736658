"""The report's figures, and its page: one file of HTML, without a script or anything from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure

from cw_plugin.reports import figures
from cw_plugin.reports.metrics import ENTROPY, NORM, REWARD, accuracy_metrics
from cw_plugin.reports.runs import Run

# The name of its files -> metric, title, caption.
CURVES = {
    "reward": (REWARD, "Reward", ""),
    "accuracy": ("", "Accuracy on validation", ""),
    "entropy": (ENTROPY, "Policy entropy, nats", ""),
    "grad-norm": (NORM, "Gradient norm, before clipping", ""),
    "gradient-share": ("cw_grpo/extreme_gradient_share", "Squared gradient of extreme tokens",
                       "Extreme tokens have a Gaussian kernel w below 0.5. Plain GRPO leaves them their weight."),
    "balance": ("cw_grpo/extreme_balance", "Balance of extreme tokens, Σc / Σ|c|",
                "Near 0, they occur about as often in good as in bad responses, as noise does."),
    "downweighted": ("cw_grpo/downweighted_share", "Tokens with kernel w below 0.5", ""),
    "covariance": ("cw_grpo/covariance_before", "Cov(log π, A) before the weights",
                   "Where it is positive, theory says that entropy falls. Only the sign means something."),
    "covariance-after": ("cw_grpo/covariance_after", "Cov(log π, A) after the weights", ""),
    "length": ("response_length/mean", "Response length, tokens", ""),
}  # fmt: skip
FIRST = ("reward", "accuracy", "entropy", "grad-norm")  # above the fold
_SHARES = ("accuracy", "gradient-share", "downweighted")
_START = "At step 0 all runs are one model: the mean of all is shown."

Names = Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Drawing:
    """A figure with the name of its files and its caption."""

    name: str
    figure: Figure
    caption: str = ""

    @property
    def wide(self) -> bool:
        return len(self.figure.axes) > 1

    @property
    def svg(self) -> Markup:
        return Markup(figures.inline(self.figure, self.caption or self.name))


def curves(names: Names) -> list[Drawing]:
    """A figure for each metric of :data:`CURVES` that was logged, and for each validation set if there are several."""
    runs = [run for several in names.values() for run in several]
    sets = sorted({name for run in runs for name in accuracy_metrics(run.metrics)})
    wanted = CURVES | {
        f"accuracy-{n}": (name, f"Accuracy, {name.split('/')[1]}", "")
        for n, name in enumerate(sets, 1)
        if len(sets) > 1
    }
    one_model = len(runs) > 1 and len({run.model for run in runs}) == 1 and runs[0].model is not None
    drawn = []
    for name, (metric, title, caption) in wanted.items():
        series = {each: [run.series(metric) if metric else run.accuracy for run in names[each]] for each in names}
        every = [values for several in series.values() for values in several if len(values)]
        if not every:
            continue
        window = max(1, max(map(len, every)) // 20)
        if name.startswith("accuracy"):
            window = 1
            if one_model and all(0 in values for values in every):
                start = sum(values[0] for values in every) / len(every)
                for values in every:
                    values[0] = start
                caption = _START
        caption = f"{caption} Means of {window} steps.".strip() if window > 1 else caption
        share = name.startswith(_SHARES)
        drawn.append(Drawing(name, figures.curves(series, title, "", window, share), caption))
    return drawn


def of_tokens(tokens: Mapping[str, pd.DataFrame], names: Sequence[str]) -> list[Drawing]:
    """Figure 3, and the weights."""
    held = "How much of the sum of c the most extreme tokens of either side hold: the paper's Figure 3."
    weight = "Mean weight by covariance, in logarithms beyond 0.1."
    drawn = [("contributions", figures.contributions, held), ("weights", figures.weights, weight)]
    return [Drawing(name, draw(tokens, names), caption) for name, draw, caption in drawn] if tokens else []


def render(names: Names, **material: Any) -> str:
    """The page's text; ``material`` is what report.html.j2 names."""
    methods = []
    for place, (name, runs) in enumerate(names.items()):
        steps = " or ".join(dict.fromkeys(str(max(run.metrics.index)) for run in runs))
        dashes = figures.STYLES[place % len(figures.STYLES)][1]
        methods.append(
            {
                "name": name,
                "runs": f"{len(runs)} run{'s' * (len(runs) > 1)}, {steps} steps" if runs else "",
                "place": place % len(figures.STYLES),
                "dashes": "" if dashes == "-" else " ".join(f"{1.8 * length:g}" for length in dashes[1]),
            }
        )
    environment = Environment(loader=PackageLoader("cw_plugin.reports", "."), autoescape=True)
    return environment.get_template("report.html.j2").render(
        methods=methods, seeds=any(len(runs) > 1 for runs in names.values()), **material
    )
