"""CW-GRPO with the covariance within a state in place of that within a group.

Entropy changes by the covariance of log pi and A at each position (arXiv 2505.22617, "The Entropy Mechanism of
Reinforcement Learning for Reasoning Language Models"). There log pi is centred by its expectation at that position,
which is -H. CW-GRPO centres it by its mean over the group, which needs no entropies. Here::

    c = (log pi + H) (A - mean(A)),  w = exp(-c^2 / (2 sigma^2)),  sigma = std of {c},  scaled to average 1

A variant of our own; nobody has published results with it that we know of. Frozen: as in CW-GRPO.
"""

from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import weighting
from cw_plugin.weights import Group, centred, kernel, spread


@weighting(scaled=True, needs_entropies=True, needs_several_responses=True)
def state(group: Group) -> Float[Tensor, " N"]:
    """Less weight for tokens whose covariance within their state is far from 0."""
    c = (group.log_probs.double() + group.entropies) * centred(group.advantages)
    return kernel(c / spread(c))
