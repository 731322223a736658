"""The paper's equations once more, in float64 and one group after the other: independent of cw_plugin."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd


def mean(values: Iterable[float]) -> float:
    """Exact, so that the mean of equal values is equal to them."""
    values = list(values)
    return math.fsum(values) / len(values)


def grpo_advantages(rewards: Iterable[float], uids: Iterable[Hashable], epsilon: float = 1e-6) -> list[float]:
    """A response's reward less the mean of its prompt, over the unbiased deviation; epsilon differs among hosts."""
    values = pd.Series(list(rewards), dtype=float)
    of_prompt = values.groupby(pd.Series(list(uids), dtype=object))
    return ((values - of_prompt.transform("mean")) / (of_prompt.transform("std") + epsilon)).tolist()


def reference_advantages(
    log_probs: Sequence[Sequence[float]],
    advantages: Sequence[float] | Sequence[Sequence[float]],
    mask: Sequence[Sequence[int]],
    uids: Sequence[Hashable],
) -> tuple[list[list[float]], dict[Hashable, dict[str, Any]]]:
    """Reweighted advantages (rows, time), 0 off the mask; and of each group with a token its tokens' places (row, t),
    log-probs x, advantages a, covariances c, kernel w and weights, sigma, and whether its covariances are alike.
    Arguments may be tensors. Advantages are of responses or of tokens."""
    given = log_probs, advantages, mask, uids
    log_probs, advantages, mask, uids = (v.tolist() if hasattr(v, "tolist") else v for v in given)
    reweighted = [[0.0] * len(row) for row in mask]
    groups: dict[Hashable, dict[str, Any]] = {}
    for uid in dict.fromkeys(uids):
        rows = [row for row, other in enumerate(uids) if other == uid]
        places = [(row, t) for row in rows for t, valid in enumerate(mask[row]) if valid]
        if not places:
            continue
        x = np.array([float(log_probs[row][t]) for row, t in places])
        a = np.array([float(advantages[row][t] if np.ndim(advantages[row]) else advantages[row]) for row, t in places])
        c = (x - mean(x)) * (a - mean(a))
        sigma = math.sqrt(mean((c - mean(c)) ** 2))
        alike = abs(mean(c)) >= 10 * sigma  # also if sigma is 0
        w = np.ones(len(c)) if alike else np.exp(-(c**2) / (2 * sigma**2))
        weights = w / mean(w)
        for (row, t), value in zip(places, (weights * a).tolist(), strict=True):
            reweighted[row][t] = value
        of_tokens = {"places": places, "x": x, "a": a, "c": c, "w": w, "weights": weights}
        groups[uid] = {**of_tokens, "sigma": sigma, "alike": alike}
    return reweighted, groups
