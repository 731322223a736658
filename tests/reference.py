"""The paper's equations once more, in float64 and one group after the other: independent of cw_plugin."""

from __future__ import annotations

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
    of_prompt = values.groupby(list(uids))
    return ((values - of_prompt.transform("mean")) / (of_prompt.transform("std") + epsilon)).tolist()


def reference_weights(
    log_probs: Sequence[Sequence[float]],
    advantages: Sequence[float] | Sequence[Sequence[float]],
    mask: Sequence[Sequence[int]],
    uids: Sequence[Hashable],
) -> tuple[list[list[float]], dict[Hashable, dict[str, Any]]]:
    """Normalised weights (rows, time), 0 off the mask; and of each group with a token its tokens' log-probs x,
    advantages a, covariances c, kernel w and weights, sigma, and whether its covariances are alike. Advantages are of
    responses or of tokens."""
    weights = [[0.0] * len(row) for row in mask]
    groups: dict[Hashable, dict[str, Any]] = {}
    for uid in dict.fromkeys(uids):
        rows = [row for row, other in enumerate(uids) if other == uid]
        tokens = [(row, t) for row in rows for t, valid in enumerate(mask[row]) if valid]
        if not tokens:
            continue
        x = np.array([float(log_probs[row][t]) for row, t in tokens])
        a = np.array([float(advantages[row][t] if np.ndim(advantages[row]) else advantages[row]) for row, t in tokens])
        c = (x - mean(x)) * (a - mean(a))
        sigma = math.sqrt(mean((c - mean(c)) ** 2))
        alike = abs(mean(c)) >= 10 * sigma  # also if sigma is 0
        w = np.ones(len(c)) if alike else np.exp(-(c**2) / (2 * sigma**2))
        normalised = w / mean(w)
        for (row, t), value in zip(tokens, normalised.tolist(), strict=True):
            weights[row][t] = value
        groups[uid] = {"x": x, "a": a, "c": c, "w": w, "weights": normalised, "sigma": sigma, "alike": alike}
    return weights, groups
