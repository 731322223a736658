"""How token-level covariance is distributed over tokens: what the paper's Table 1 and Figure 3 are made of.

Tokens are counted by their covariance c (weights.py) in bins on both sides of zero. Each power of two is divided into
128 bins. A bin also holds the sums of c, w~ and w~ c. So shares and means are exact at every edge of a bin, and a
threshold is exact to 0.8 per cent. A batch of any size becomes a few thousand numbers; bins.py adds and reads them.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cw_plugin.bins import Bins

# A float32's upper 16 bits are sign, exponent and 7 bits of mantissa. As a number they grow with the magnitude.
_KEYS = 2**16
_NEGLIGIBLE = 2.0**-24  # smaller |c| count as 0, which limits the number of bins


class CovarianceRecorder:
    """An observer for :func:`cw_plugin.weights.reweight_responses`.

    Args:
        response_mask: (rows, time), nonzero for valid tokens.
        top: how many of the most extreme tokens of each side to remember.
    """

    def __init__(self, response_mask: Tensor, top: int = 0) -> None:
        self._mask = response_mask
        self._top = top
        self._sums = torch.zeros(4, _KEYS, dtype=torch.float64)
        self._extremes: list[np.ndarray] = []  # (3, tokens): c, w~, row * time + position

    def __call__(
        self, rows: Int[Tensor, " block"], c: Float[Tensor, "block longest"], weights: Float[Tensor, "block longest"]
    ) -> None:
        valid: Bool[Tensor, "block longest"] = self._mask[rows, : c.shape[1]] != 0
        covariance, weight = c[valid].float(), weights[valid].double()
        keys = (covariance.view(torch.int32) >> 16) & (_KEYS - 1)
        wide = covariance.double()
        for into, values in zip(self._sums, (None, wide, weight, weight * wide), strict=True):
            into += torch.bincount(keys, values, minlength=_KEYS).cpu()
        for sign in (1, -1) if self._top else ():
            flat = sign * c.flatten()
            values, at = torch.topk(flat, min(self._top, flat.numel()))
            position = rows[at // c.shape[1]] * self._mask.shape[1] + at % c.shape[1]
            found = torch.stack([sign * values.double(), weights.flatten()[at].double(), position.double()])
            self._extremes.append(found.cpu().numpy())

    def bins(self) -> Bins:
        """The bins that hold tokens, from the most negative to the largest.

        Returns:
            ``edge`` (float64), the bin's edge that is nearer to 0; ``tokens`` (int64), how many tokens it has; and
            ``covariance``, ``weight`` and ``weighted`` (float64), the sums of c, w~ and w~ c over these tokens.
        """
        keys = np.arange(_KEYS, dtype=np.uint32)
        with np.errstate(invalid="ignore"):
            edge = (keys << 16).view(np.float32).astype(np.float64)
        sums = self._sums.numpy().copy()
        negligible = np.abs(edge) < _NEGLIGIBLE
        sums[:, 0] = sums[:, negligible].sum(1)
        negligible[0] = False
        sums[:, negligible] = 0
        held = np.flatnonzero(sums[0])
        held = held[np.argsort(edge[held])]
        tokens, covariance, weight, after = sums[:, held]
        return {
            "edge": edge[held],
            "tokens": tokens.astype(np.int64),
            "covariance": covariance,
            "weight": weight,
            "weighted": after,
        }

    def extremes(self) -> dict[str, np.ndarray]:
        """The ``top`` tokens of each side, the most extreme first.

        Returns:
            ``covariance`` (c), ``weight`` (w~), and ``row`` and ``position`` (time) in the batch.
        """
        found = np.concatenate([np.zeros((3, 0)), *self._extremes], axis=1)
        found = found[:, np.argsort(-np.abs(found[0]), kind="stable")]
        sides = [found[:, sign * found[0] > 0][:, : self._top] for sign in (1, -1)]
        covariance, weight, position = np.concatenate(sides, axis=1)
        row, position = np.divmod(position.astype(np.int64), max(self._mask.shape[1], 1))
        return {"covariance": covariance, "weight": weight, "row": row, "position": position}
