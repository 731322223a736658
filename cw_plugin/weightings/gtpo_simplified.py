"""After GTPO: the most surprising tokens of each response get more weight.

Source: teilomillet/retrain at 19db12f, retrain/advantages/credit.py, line 13, with its default signal, surprisal::

    w = max(0, 1 + 0.1 (s / mean s - 1)),  s = min(-log pi, 50);  w = 1 if mean s < 1e-7

with the mean over the response. It is named after arXiv 2508.04349, "GTPO and GRPO-S: Token and Sequence-Level Reward
Shaping with Policy Entropy", whose authors give each token a share of the reward: that of its entropy, among the
responses at the same position. No weight of GRPO's advantage can do that. Nothing is frozen.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(scaled=False, settings={"beta": Setting(0.1, low=0, high=100)})
def gtpo_simplified(group: Group, beta: float) -> Float[Tensor, " N"]:
    """Above 1 for a token that is more surprising than its response on average."""
    surprisal = (-group.log_probs.double()).clamp(max=50)
    of_responses, response = group.response_means(surprisal)
    mean = of_responses[response]
    return torch.where(mean < 1e-7, 1.0, (1 + beta * (surprisal / (mean + 1e-8) - 1)).clamp(min=0))
