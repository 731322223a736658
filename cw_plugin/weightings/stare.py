"""STARE: the most surprising tokens of good responses get more weight, so that entropy does not collapse.

Source: arXiv 2606.19236, "STARE: Surprisal-Guided Token-Level Advantage Reweighting for Policy Entropy Stability"::

    w = 1.1    for the 10% of the tokens with A > 0 whose log pi is lowest (one at least)
        1      for the others; and for all, while the mean entropy of the batch is 0.3 or more: ``stare_gated``

Its authors' code, hp-luo/STARE at bffb9e7: verl/trainer/ppo/core_algos.py, line 1070; the gate in line 249. The numbers
are those of recipe/STARE/scripts/run_short_cot_qwen2.5_math_7b_STARE.sh; they advise 1.05 for 14 billion parameters and
more. Left out: their variant C2, which also gives 0.9 to the most surprising tokens with A < 0; and weights that adapt
to the entropy, which their scripts turn off.

Frozen: they rank the tokens of each micro-batch, by the current policy. Here a group's tokens are ranked once, by the
policy before the update. Their gate asks the mean over the whole batch's tokens, as here with every scope.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.groups import highest
from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group

_SETTINGS = {"share": Setting(0.1, low=0, high=1), "weight": Setting(1.1, low=1, high=10)}


@weighting(scaled=False, settings=_SETTINGS)
def stare(group: Group, share: float, weight: float) -> Float[Tensor, " N"]:
    """The authors' default (O1) without its gate."""
    candidates = (group.advantages > 0).nonzero()[:, 0]
    count = int(len(candidates) * share + 0.999999)  # rounded up as in the authors' code
    most_surprising = candidates[highest(-group.log_probs[candidates], count)]
    return torch.ones_like(group.log_probs).index_fill(0, most_surprising, weight)


@weighting(
    scaled=False,
    needs_batch_entropy=True,
    settings={**_SETTINGS, "target_entropy": Setting(0.3, low=0, high=100)},
)
def stare_gated(group: Group, share: float, weight: float, target_entropy: float) -> Float[Tensor, " N"]:
    """The authors' default (O1)."""
    if group.batch_entropy < target_entropy:
        return stare.function(group, share, weight)
    return torch.ones_like(group.log_probs)
