"""80/20: only the fifth of the tokens at whose positions the policy is least certain are trained on.

Source: arXiv 2506.01939, "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning
for LLM Reasoning", equation 6::

    w = N / K    for the K = ceil(0.2 N) tokens with the highest H
        0        for the others

The paper divides the loss by the tokens that are kept; N / K does the same to a loss that divides by all tokens
(token-mean). Its authors' code, Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR at 6f5dda6: verl/trainer/ppo/core_algos.py,
lines 53 and 1007. Of equal entropies, those that come first in the group are kept; theirs keeps any, but also K.

TRL's ``top_entropy_quantile=0.2`` differs: it keeps all tokens at the quantile or above, and divides by all tokens
(trl 1.16.0, trl/trainer/grpo_trainer.py, line 1380; ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py, line 959).

Frozen: H is that of the policy before the update, once; they ask the current policy. The fifth is that of a prompt
group; in the paper, that of the batch (``scope=batch``); in their code and TRL's, that of a micro-batch.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.groups import highest
from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(scaled=True, needs_entropies=True, settings={"share": Setting(0.2, low=0, high=1)})
def high_entropy(group: Group, share: float) -> Float[Tensor, " N"]:
    """1 for the positions with the highest entropies, 0 for the others, before they are scaled."""
    count = int(len(group.entropies) * share + 0.9999)  # rounded up as in the authors' code
    kept = highest(group.entropies, max(1, count))
    return torch.zeros_like(group.log_probs).index_fill(0, kept, 1)
