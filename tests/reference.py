"""The paper's equations once more: a float64 loop over groups and tokens, independent of cw_plugin."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence


def reference_weights(
    log_probs: Sequence[Sequence[float]],
    advantages: Sequence[float],
    mask: Sequence[Sequence[int]],
    uids: Sequence[Hashable],
) -> tuple[list[list[float]], dict[Hashable, dict[str, float]]]:
    """Normalised weights (rows, time), 0 off the mask, and for each group with a token its sigma, mean c and kernel."""
    rows_of = defaultdict(list)
    for row, uid in enumerate(uids):
        rows_of[uid].append(row)
    weights = [[0.0] * len(row) for row in mask]
    groups: dict[Hashable, dict[str, float]] = {}
    for uid, rows in rows_of.items():
        tokens = [(i, t) for i in rows for t in range(len(mask[i])) if mask[i][t]]
        if not tokens:
            continue
        n = len(tokens)
        mean_log_prob = math.fsum(float(log_probs[i][t]) for i, t in tokens) / n
        mean_advantage = math.fsum(float(advantages[i]) for i, t in tokens) / n
        c = [(float(log_probs[i][t]) - mean_log_prob) * (float(advantages[i]) - mean_advantage) for i, t in tokens]
        mean_c = math.fsum(c) / n
        sigma = math.sqrt(math.fsum((x - mean_c) ** 2 for x in c) / n)
        uniform = abs(mean_c) >= 10 * sigma  # sigma = 0, or every token alike: weight 1
        w = [1.0 if uniform else math.exp(-x * x / (2 * sigma * sigma)) for x in c]
        sum_w = math.fsum(w)
        for (i, t), value in zip(tokens, w, strict=True):
            weights[i][t] = value * n / sum_w
        groups[uid] = {"sigma": sigma, "mean_c": mean_c, "n": n, "sum_w": sum_w, "uniform": uniform}
        groups[uid] |= {"sum_w2": math.fsum(x * x for x in w), "low": sum(x < 0.5 for x in w), "min_w": min(w)}
        groups[uid] |= {"max_c": max(c), "min_c": min(c)}
        gradient = [float(advantages[i]) ** 2 * (1 - math.exp(float(log_probs[i][t]))) ** 2 for i, t in tokens]
        extreme = [(x, g) for x, g, value in zip(c, gradient, w, strict=True) if value < 0.5]
        groups[uid] |= {"gradient": math.fsum(gradient), "extreme_gradient": math.fsum(g for _, g in extreme)}
        groups[uid] |= {
            "extreme_c": math.fsum(x for x, _ in extreme),
            "extreme_size": math.fsum(abs(x) for x, _ in extreme),
        }
        after = [weights[i][t] * float(advantages[i]) for i, t in tokens]
        mean_after = math.fsum(after) / n
        groups[uid]["cov_after"] = (
            math.fsum(
                (float(log_probs[i][t]) - mean_log_prob) * (a - mean_after)
                for (i, t), a in zip(tokens, after, strict=True)
            )
            / n
        )
    return weights, groups
