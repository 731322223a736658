"""Entropy in the advantage: uncertain positions gain advantage, up to half of its size.

Source: arXiv 2506.14758, "Reasoning with Exploration: An Entropy Perspective", equations 5 and 6::

    A + min(alpha H, abs(A) / kappa) = w A,  w = 1 + sign(A) min(alpha H / abs(A), 1 / kappa);  w = 1 where A = 0

with the paper's alpha = 0.4 for GRPO, and kappa = 2 (section 4). So w is 0.5 to 1.5. Its authors published no code that
we know of, but the line that they add to verl's update (section 3.2).

Frozen: H is that of the policy before the update; their line takes that of the current policy in every update.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(
    scaled=False,
    needs_entropies=True,
    settings={"alpha": Setting(0.4, low=0, high=100), "kappa": Setting(2.0, low=1, high=1e6)},
)
def entropy_advantage(group: Group, alpha: float, kappa: float) -> Float[Tensor, " N"]:
    """More weight at uncertain positions of good responses, and less at those of bad ones."""
    size = group.advantages.abs()
    bonus = torch.minimum(alpha * group.entropies, size / kappa)
    return torch.where(size > 0, 1 + group.advantages.sign() * bonus / size, 1.0)
