"""Advantage Reweighting (AR): improbable tokens get less weight, in proportion to their probability.

Source: arXiv 2505.12929, "Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs"::

    w = alpha pi + 1 - alpha

Its authors' code, zhyang2226/AR-Lopti at cbeb333: verl/trainer/ppo/ray_trainer.py, line 347 (``both_linear_normal``),
called in line 1189 with ``old_log_probs``, as here. So nothing is frozen that is not in their code. alpha is that of
scripts/train_kklogic_AR_4x80GB.sh, line 34; with Lopti, which needs two updates and is not here, they use 0.3.
"""

from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(scaled=False, settings={"alpha": Setting(0.2, low=0, high=1)})
def ar(group: Group, alpha: float) -> Float[Tensor, " N"]:
    """From 1 - alpha for pi near 0 to 1 for pi = 1."""
    return alpha * group.log_probs.exp() + 1 - alpha
