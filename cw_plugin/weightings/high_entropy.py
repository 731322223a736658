"""80/20: only the fifth of the tokens at whose positions the policy is least certain are trained on.

Source: arXiv 2506.01939, "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning
for LLM Reasoning"::

    w = 1    where H is at least the 80% quantile of H
        0    elsewhere

Its authors published no code that we know of. TRL has it as ``top_entropy_quantile=0.2``: trl 1.16.0,
trl/trainer/grpo_trainer.py, line 1380; ms-swift 4.6.0 too: swift/rlhf_trainers/grpo_trainer.py, line 959.

Frozen: H is that of the policy before the update, once; TRL asks the current policy. The quantile runs over a prompt
group, or with scope "batch" over the batch, as in the paper; TRL's and ms-swift's run over a micro-batch.
"""

import math

from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import weighting
from cw_plugin.weights import Group

SHARE = 0.2


@weighting(scaled=False, needs_entropies=True)
def high_entropy(group: Group) -> Float[Tensor, " N"]:
    """1 for the positions with the highest entropies, 0 for the others."""
    # Those at or above the quantile, which torch.quantile would interpolate, for 16 million values at most.
    rank = math.ceil((1 - SHARE) * (len(group.entropies) - 1) - 1e-6)
    return (group.entropies >= group.entropies.kthvalue(rank + 1).values).to(group.log_probs)
