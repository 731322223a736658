"""The advantages of good responses times 0.1, so that training mostly learns from bad ones. This is not W-REINFORCE.

Source: the factor ``positive_learning_weight`` in TianHongZXY/RLVR-Decomposed at a5d4e7c, which it offers for methods
with normalised advantages, such as GRPO (verl/trainer/ppo/core_algos.py, line 350; its author in issue 3)::

    w = 0.1    where A > 0
        1      elsewhere

Their paper, arXiv 2506.01347, "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning", does not
report results with it. Its W-REINFORCE has other advantages: 0.1 for a right answer and -1 for a wrong one, also where
all answers to a prompt are wrong. No weight makes these of GRPO's, which are 0 there. Nothing is frozen.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(scaled=False, settings={"weight": Setting(0.1, low=0, high=1)})
def positive_weight(group: Group, weight: float) -> Float[Tensor, " N"]:
    """Less weight for all tokens of good responses."""
    return torch.ones_like(group.log_probs).masked_fill(group.advantages > 0, weight)
