"""Clip-Cov, and a relative of KL-Cov: tokens with a large covariance get no weight.

Source: arXiv 2505.22617, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models"::

    clip_cov        w = 0 for tokens drawn at random from those with 1 < c < 5: 0.0002 of all tokens, one at least
    drop_top_cov    w = 0 for the 0.002 of all tokens with the largest c, one at least

Its authors' code, PRIME-RL/Entropy-Mechanism-of-RL at 8850579: verl/trainer/ppo/core_algos.py, lines 469 and 426; the
numbers are those of recipe/dapo/7b_clip_cov.sh (and 32b_clip_cov.sh), and of 7b_kl_cov.sh, whose ``k_percent`` is 0.2;
32b_kl_cov.sh has 0.02, which is 0.0002 of the tokens. verl has both as policy losses (``loss_mode=clip_cov`` and
``kl_cov``). KL-Cov adds a KL penalty to the tokens that ``drop_top_cov`` leaves out; a weight cannot do that.

Their Clip-Cov scripts also set ``clip_ratio_low`` and ``clip_ratio_high`` to 1, so that PPO hardly clips. That is a
setting of the host.

Frozen: they choose in each micro-batch, with the covariances of the current policy, and leave out tokens that PPO
clips. Here tokens of a whole group are chosen, once, before the first update, in which PPO clips none. So more tokens
are dropped where a group is smaller than their micro-batch, because at least one is.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.errors import OptionsError
from cw_plugin.groups import highest
from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(
    scaled=False,
    needs_several_responses=True,
    settings={
        "share": Setting(0.0002, low=0, high=1),
        "lower": Setting(1.0, low=0, high=1e6),
        "upper": Setting(5.0, low=0, high=1e6),
    },
)
def clip_cov(group: Group, share: float, lower: float, upper: float) -> Float[Tensor, " N"]:
    """0 for a few tokens drawn among those with a large covariance."""
    if lower >= upper:
        raise OptionsError(f"lower={lower:g} and upper={upper:g} leave no token", fix="set lower below upper")
    candidates = ((group.c > lower) & (group.c < upper)).nonzero()[:, 0]
    drawn = torch.rand(len(group.c), generator=group.generator)[candidates]
    dropped = candidates[highest(drawn, max(1, int(share * len(group.c))))]
    return torch.ones_like(group.log_probs).index_fill(0, dropped, 0)


@weighting(scaled=False, needs_several_responses=True, settings={"share": Setting(0.002, low=0, high=1)})
def drop_top_cov(group: Group, share: float) -> Float[Tensor, " N"]:
    """0 for the tokens with the largest covariances."""
    dropped = highest(group.c, max(1, int(share * len(group.c))))
    return torch.ones_like(group.log_probs).index_fill(0, dropped, 0)
