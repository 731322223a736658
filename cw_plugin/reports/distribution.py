"""How covariance is distributed over tokens: what Table 1, Figure 3 and the weight curve are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Side:
    """Tokens of positive or of negative covariance, the most extreme first.

    Attributes:
        threshold: |c| of each token.
        tokens: how many tokens are at least as extreme.
        covariance: the sum of |c| over those tokens.
    """

    threshold: np.ndarray
    tokens: np.ndarray
    covariance: np.ndarray

    def at(self, share: float) -> tuple[float, float]:
        """The threshold and the mean of |c| of the most extreme tokens, ``share`` (0 to 1) of this side.

        Between two tokens both are interpolated linearly. Both are nan if the share is less than one token.
        """
        wanted = share * self.tokens[-1] if len(self.tokens) else 0
        if wanted < 1:
            return float("nan"), float("nan")
        total = np.interp(wanted, np.concatenate([[0], self.tokens]), np.concatenate([[0], self.covariance]))
        return float(np.interp(wanted, self.tokens, self.threshold)), float(total / wanted)


@dataclass(frozen=True)
class Distribution:
    """Covariances and weights of tokens.

    Attributes:
        covariance: c, of each token.
        weight: w~, of each token.
        count: 1 for a token. An entry may also stand for several tokens of nearly equal covariance, with their means.
    """

    covariance: np.ndarray
    weight: np.ndarray
    count: np.ndarray

    def side(self, sign: int) -> Side:
        """The tokens of positive (``sign`` 1) or negative (-1) covariance."""
        chosen = np.flatnonzero(sign * self.covariance > 0)
        chosen = chosen[np.argsort(-sign * self.covariance[chosen])]
        size, count = np.abs(self.covariance[chosen].astype(np.float64)), self.count[chosen]
        return Side(size, np.cumsum(count), np.cumsum(count * size))


def together(several: Sequence[Distribution]) -> Distribution:
    """The tokens of all of them."""
    return Distribution(
        np.concatenate([one.covariance for one in several]),
        np.concatenate([one.weight for one in several]),
        np.concatenate([one.count for one in several]),
    )
