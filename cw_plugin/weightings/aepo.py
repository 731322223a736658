"""The advantage of AEPO: uncertain positions get more weight, certain ones less.

Source: arXiv 2510.14545, "Agentic Entropy-Balanced Policy Optimization", as in WillDreamer/ARLArena at dc1da9f:
verl/trainer/ppo/core_algos.py, line 1411::

    w = max(0, 1 + 0.2 (H - mean H) / std H)    std with N - 1; w = 1 if all H are equal

Left out: AEPO's clipping, which keeps the gradient of clipped tokens at uncertain positions, and its rollouts. Frozen:
there H is the current policy's, its mean and deviation are those of a micro-batch, and w may be below 0, for H more
than five deviations below the mean.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(scaled=False, needs_entropies=True, settings={"scale": Setting(0.2, low=0, high=10)})
def aepo(group: Group, scale: float) -> Float[Tensor, " N"]:
    """Above 1 where the entropy is above its mean, and below 1 where it is below."""
    h = group.entropies.double()
    deviation = h.std() if len(h) > 1 else torch.zeros(())
    if deviation == 0:
        return torch.ones_like(group.log_probs)
    return (1 + scale * (h - h.mean()) / deviation).clamp(min=0)
