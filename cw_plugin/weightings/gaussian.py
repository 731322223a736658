"""CW-GRPO, the default: extreme covariances get less weight. And plain GRPO, in which every token has weight 1.

Source: arXiv 2605.11538, "Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting",
section 2.3::

    w_it  = exp(-c_it^2 / (2 sigma^2))        Gaussian kernel of z = c / sigma
    w~_it = w_it * N / sum(w)                 weights average 1 over the group

Its authors have published no code that we know of. Frozen: log pi is that of the policy before the update.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.weightings import weighting
from cw_plugin.weightings.group import Group


def kernel(z: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The paper's kernel."""
    return torch.exp(-(z**2) / 2)


@weighting(scaled=True)
def gaussian(group: Group) -> Float[Tensor, " N"]:
    """Less weight for covariances far from 0, on both sides."""
    return kernel(group.z)


@weighting(scaled=False)
def none(group: Group) -> Float[Tensor, " N"]:
    """Weight 1 for all."""
    return torch.ones_like(group.log_probs)
