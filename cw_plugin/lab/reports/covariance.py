"""How covariance is distributed over tokens: the paper's Table 1, and what Figure 3 draws."""

import math

import numpy as np
import pandas as pd

from cw_plugin.lab.reports.table_formats import Table

SHARES = (0.0001, 0.01, 0.2, 0.4, 1.0)  # of the paper's Table 1
FEW = 10  # tokens; fewer than these say little about the extremes


def one_side(tokens: pd.DataFrame, sign: int) -> pd.DataFrame:
    """The tokens of one sign of the covariance, the most extreme first.

    Args:
        tokens: a row has the covariance c of one token, or of as many as a column count says.
        sign: 1 for positive, -1 for negative covariance.

    Returns:
        A row for each row of ``tokens`` of this sign: size is |c|; count, how many tokens it stands for; tokens, how
        many are at least as extreme; held, the sum of their |c|.
    """
    chosen = tokens[sign * tokens.covariance > 0]
    count = chosen["count"] if "count" in chosen else pd.Series(1, index=chosen.index)
    side = pd.DataFrame({"size": chosen.covariance.abs().astype(float), "count": count})
    side = side.sort_values("size", ascending=False, kind="stable", ignore_index=True)
    return side.assign(tokens=side["count"].cumsum(), held=(side["size"] * side["count"]).cumsum())


def extremes(side: pd.DataFrame, share: float) -> tuple[float, float]:
    """|c| of the least extreme among the most extreme tokens of a side, and their mean of |c|; nan for less than one.

    Args:
        side: from :func:`one_side`.
        share: how many of its tokens, 0 to 1. Between two rows, both numbers are linear.
    """
    wanted = share * side.tokens.iloc[-1] if len(side) else 0
    if wanted < 1:
        return math.nan, math.nan
    held = np.interp(wanted, [0, *side.tokens], [0, *side.held])
    return float(np.interp(wanted, side.tokens, side["size"])), float(held / wanted)


def table_1(name: str, tokens: pd.DataFrame) -> Table:
    """Covariance of a method's tokens at a percentile: the threshold, and the mean beyond it."""
    positive, negative = one_side(tokens, 1), one_side(tokens, -1)
    rows = []
    for share in SHARES:
        values = [*extremes(positive, share), *(-value for value in extremes(negative, share))]
        rows.append([f"{share:.2%}", *(float(f"{value:.3g}") for value in values)])
    columns = ["most extreme", "positive ≥", "positive mean", "negative ≤", "negative mean"]
    counts = [int(side["count"].sum()) for side in (positive, negative)]
    notes = [f"The threshold and the mean beyond it. {counts[0]} tokens are positive, {counts[1]} negative."]
    few = [f"{share:.2%}" for share in SHARES if share * min(counts) < FEW]
    if few:
        notes.append(f"Of fewer than {FEW} tokens, so mostly chance: {', '.join(few)}.")
    return Table("table1", f"Table 1: covariance of tokens, {name}", pd.DataFrame(rows, columns=columns), notes)
