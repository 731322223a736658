"""How covariance is distributed over tokens: the paper's Table 1, and what Figure 3 draws."""

import numpy as np
import pandas as pd

from cw_plugin.reports.formats import Table

SHARES = (0.0001, 0.01, 0.2, 0.4, 1.0)  # of the paper's Table 1
FEW = 10  # tokens; fewer than these say little about the extremes


def one_side(tokens: pd.DataFrame, sign: int) -> pd.DataFrame:
    """The tokens of positive (``sign`` 1) or negative (-1) covariance, the most extreme first: size, |c|; tokens, how
    many are at least as extreme; held, the sum of their |c|. A row of ``tokens`` has the covariance c of one token, or
    of as many as a column count says."""
    chosen = tokens[sign * tokens.covariance > 0]
    count = chosen["count"] if "count" in chosen else pd.Series(1, index=chosen.index)
    side = pd.DataFrame({"size": chosen.covariance.abs().astype(float), "count": count})
    side = side.sort_values("size", ascending=False, kind="stable", ignore_index=True)
    return side.assign(tokens=side["count"].cumsum(), held=(side["size"] * side["count"]).cumsum())


def extremes(side: pd.DataFrame, share: float) -> tuple[float, float]:
    """Threshold and mean of |c| of the most extreme tokens, ``share`` (0 to 1) of what :func:`one_side` gives; linear
    between two tokens, nan for less than one."""
    wanted = share * side.tokens.iloc[-1] if len(side) else 0
    if wanted < 1:
        return float("nan"), float("nan")
    held = np.interp(wanted, [0, *side.tokens], [0, *side.held])
    return float(np.interp(wanted, side.tokens, side["size"])), float(held / wanted)


def table_1(name: str, tokens: pd.DataFrame) -> Table:
    """Covariance of a method's tokens at a percentile: the threshold, and the mean beyond it."""
    positive, negative = one_side(tokens, 1), one_side(tokens, -1)
    rows = []
    for share in SHARES:
        (at, mean), (below, low) = extremes(positive, share), extremes(negative, share)
        rows.append([f"{share:.2%}", *(float(f"{value:.3g}") for value in (at, mean, -below, -low))])
    columns = ["most extreme", "positive ≥", "positive mean", "negative ≤", "negative mean"]
    counts = [int(side["count"].sum()) for side in (positive, negative)]
    notes = [f"The threshold and the mean beyond it. {counts[0]} tokens are positive, {counts[1]} negative."]
    if few := [f"{share:.2%}" for share in SHARES if share * min(counts) < FEW]:
        notes.append(f"Of fewer than {FEW} tokens, so mostly chance: {', '.join(few)}.")
    return Table("table1", f"Table 1: covariance of tokens, {name}", pd.DataFrame(rows, columns=columns), notes)
