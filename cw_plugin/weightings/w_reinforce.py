"""W-REINFORCE: good responses get a tenth of the weight, so that training mostly learns from bad ones.

Source: arXiv 2506.01347, "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning"::

    w = lambda = 0.1    where A > 0
        1               elsewhere

Its authors' code, TianHongZXY/RLVR-Decomposed at a5d4e7c: verl/trainer/ppo/core_algos.py, line 148; README.md, line 32,
recommends 0.1. Nothing is frozen: the weights depend on rewards alone. Left out: their advantages, +1 for a right and
-1 for a wrong answer, without the group's mean and deviation. Here the weights multiply the host's, such as GRPO's.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import weighting
from cw_plugin.weights import Group

LAMBDA = 0.1


@weighting(scaled=False)
def w_reinforce(group: Group) -> Float[Tensor, " N"]:
    """Less weight for all tokens of good responses."""
    return torch.ones_like(group.log_probs).masked_fill(group.advantages > 0, LAMBDA)
