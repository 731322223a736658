"""STEER: the more an update of a token would change the entropy of its position, the less weight the token gets.

Source: arXiv 2510.10150, "Rethinking Entropy Interventions in RLVR: An Entropy Change Perspective"::

    Omega = abs(A (1 - pi) (ln pi + H))
    steer        w = 1.2 - 0.4 (Omega - min Omega) / (max Omega - min Omega)
    steer_exp    w = exp(-k Omega),  k = -ln 0.8 / max(max Omega, 0.02)

Its authors' code, zz-haooo/STEER at b31df71: verl/trainer/ppo/core_algos.py, line 580; the numbers are those of
run/run_linear.sh and run/run_exp.sh. There Omega is A / pi_old times pi (1 - pi) (ln pi + H), whose first factors are A
if pi is pi_old.

Frozen: pi is that of the policy before the update; there it is the current policy's, so that the two agree for the
first update of a batch. H is the old policy's there, too (verl/trainer/ppo/ray_trainer.py, line 1214). The range of
Omega is that of a prompt group, and there of a micro-batch.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


def entropy_change(group: Group) -> Float[Tensor, " N"]:
    """Omega of each token."""
    pi = group.log_probs.exp().clamp(min=1e-8)
    return (group.advantages * (1 - pi) * (pi.log() + group.entropies)).abs()


@weighting(
    scaled=False,
    needs_entropies=True,
    settings={"low": Setting(0.8, low=0, high=1), "high": Setting(1.2, low=1, high=10)},
)
def steer(group: Group, low: float, high: float) -> Float[Tensor, " N"]:
    """From 1.2 down to 0.8, linearly; halfway between the two if all tokens are alike."""
    omega = entropy_change(group)
    smallest, largest = omega.aminmax()
    if smallest == largest:
        return torch.full_like(omega, (low + high) / 2)
    return high - (high - low) * (omega - smallest) / (largest - smallest)


@weighting(
    scaled=False,
    needs_entropies=True,
    settings={"low": Setting(0.8, low=0.01, high=1), "floor": Setting(0.02, low=1e-6, high=100)},
)
def steer_exp(group: Group, low: float, floor: float) -> Float[Tensor, " N"]:
    """From 1 down to 0.8, exponentially."""
    omega = entropy_change(group)
    return (math.log(low) / omega.max().clamp(min=floor) * omega).exp()
