"""How the report's tables write numbers, such as ``-6.8 points [-9.1, -4.5]*``. A star means significant."""

import math

from cw_plugin.lab.reports.comparison import ACCURACY, Outcome
from cw_plugin.lab.reports.intervals import Difference
from cw_plugin.lab.reports.scores import Score


def method_mean(outcome: Outcome, method: str) -> str:
    """The mean of a method's runs: in per cent, for a ratio with three digits, else with three decimals."""
    mean = outcome.means[method].mean()
    if outcome.is_ratio:
        return _three_digits(math.exp(mean))  # of the logarithm
    return f"{100 * mean:.1f}%" if outcome.name == ACCURACY else f"{mean:.3f}"


def method_difference(outcome: Outcome, method: str) -> str:
    """``-6.8 points [-9.1, -4.5]*``, for another outcome than accuracy ``-0.052 [-0.102, -0.001]*``."""
    difference = outcome.differences[method]
    if outcome.name == ACCURACY:
        text = f"{_points(difference.value)} points"
        interval = _interval(_points(difference.low), _points(difference.high))
    else:
        text = f"{difference.value:+.3f}"
        interval = _interval(f"{difference.low:+.3f}", f"{difference.high:+.3f}")
    return _joined(text, interval, difference, method in outcome.significant)


def method_ratio(outcome: Outcome, method: str) -> str:
    """``0.367 [0.341, 0.395]*``, where the outcome's differences are those of the logarithm."""
    difference = outcome.differences[method]
    text = _three_digits(math.exp(difference.value))
    interval = _interval(_three_digits(math.exp(difference.low)), _three_digits(math.exp(difference.high)))
    return _joined(text, interval, difference, method in outcome.significant)


def checkpoint_difference(difference: Difference, is_significant: bool) -> str | None:
    """``+6.2 [+1.3, +11.1]*`` in points; None if no question was asked of both."""
    if math.isnan(difference.value):
        return None
    interval = _interval(_points(difference.low), _points(difference.high))
    return _joined(_points(difference.value), interval, difference, is_significant)


def score(scored: Score) -> str:
    """``35.0 [24.2, 47.6]``, in per cent."""
    return f"{per_cent(scored.mean)} {_interval(per_cent(scored.low), per_cent(scored.high))}"


def score_of_answers(scored: Score) -> str:
    """``35.0 (21 of 60) [24.2, 47.6]``, in per cent."""
    interval = _interval(per_cent(scored.low), per_cent(scored.high))
    return f"{per_cent(scored.mean)} ({scored.right} of {scored.answers}) {interval}"


def per_cent(share: float) -> str:
    """``35.0`` for 0.35."""
    return f"{100 * share:.1f}"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}"


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def _interval(low: str, high: str) -> str:
    return f"[{low}, {high}]"


def _joined(value: str, interval: str, difference: Difference, is_significant: bool) -> str:
    """The value, its interval if there is one, and a star if it is significant."""
    text = value if math.isnan(difference.low) else f"{value} {interval}"
    return f"{text}*" if is_significant else text
