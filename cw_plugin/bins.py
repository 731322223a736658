"""Reads bins of covariance (covariance.py): adds them up, and cuts each side at any share of its tokens.

Needs only numpy, so tables and figures can be made without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Bins = dict[str, np.ndarray]  # what CovarianceRecorder.bins returns


@dataclass(frozen=True)
class Side:
    """One side of the distribution, tokens of positive or of negative covariance, the most extreme first.

    Attributes:
        threshold: |c| at the edge of each bin that is nearer to 0.
        tokens: how many tokens are at least as extreme as this bin's.
        covariance, weighted: sums of |c| and of w~ |c| over those tokens.
    """

    threshold: np.ndarray
    tokens: np.ndarray
    covariance: np.ndarray
    weighted: np.ndarray

    def at(self, share: float) -> tuple[float, float]:
        """The threshold and the mean of |c| of the most extreme tokens, ``share`` (0 to 1) of this side.

        Between the edges of a bin both are interpolated linearly. Both are nan if the share is less than one token.
        """
        wanted = share * self.tokens[-1] if len(self.tokens) else 0
        if wanted < 1:
            return float("nan"), float("nan")
        total = np.interp(wanted, np.concatenate([[0], self.tokens]), np.concatenate([[0], self.covariance]))
        return float(np.interp(wanted, self.tokens, self.threshold)), float(total / wanted)


def add_bins(several: Sequence[Bins]) -> Bins:
    """The bins of several batches together."""
    edge, where = np.unique(np.concatenate([bins["edge"] for bins in several]), return_inverse=True)
    sums = {
        name: np.bincount(where, np.concatenate([bins[name] for bins in several]), len(edge))
        for name in ("tokens", "covariance", "weight", "weighted")
    }
    return {"edge": edge, **sums, "tokens": sums["tokens"].astype(np.int64)}


def side(bins: Bins, sign: int) -> Side:
    """The tokens of positive (``sign`` 1) or negative (-1) covariance."""
    chosen = np.flatnonzero(sign * bins["edge"] > 0)
    chosen = chosen[np.argsort(-sign * bins["edge"][chosen])]
    return Side(
        threshold=np.abs(bins["edge"][chosen]),
        tokens=np.cumsum(bins["tokens"][chosen]),
        covariance=np.cumsum(np.abs(bins["covariance"][chosen])),
        weighted=np.cumsum(np.abs(bins["weighted"][chosen])),
    )
