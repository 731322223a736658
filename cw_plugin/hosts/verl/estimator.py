"""``algorithm.adv_estimator=cw_grpo`` in verl's registry, for programs that pass log-probs to estimators.

verl's own trainers pass none. There, trainer.py reweights, and this estimator only refuses to train plain GRPO.
"""

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from cw_plugin.batch import group_numbers
from cw_plugin.errors import HostError
from cw_plugin.hosts.host import VERL
from cw_plugin.hosts.verl import NAME
from cw_plugin.hosts.verl.refused_settings import AlgorithmConfig, read_options, weighted_estimator
from cw_plugin.reweight import reweight


def compute_cw_grpo_advantage(
    token_level_rewards: Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    index: np.ndarray,
    config: AlgorithmConfig | None = None,
    old_log_probs: Float[Tensor, "rows time"] | None = None,
    **_: object,
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "rows time"]]:
    """Weighted advantages: GRPO's, or those of another estimator of verl's (``algorithm.cw_grpo.estimator``).

    Args:
        token_level_rewards: rewards; each row is summed, as in GRPO.
        response_mask: nonzero for the tokens that are trained on.
        index: the uid of each row's prompt, (rows,) of any hashable.
        config: verl's ``algorithm`` configuration.
        old_log_probs: log-probs of the policy before the update, in nats.

    Returns:
        advantages and returns, the same float32 tensor as in verl's outcome estimators, 0 off the mask.

    Raises:
        HostError: no log-probs reached the estimator.
        NonFiniteError: NaN or infinity at a valid token.
        OptionsError: unknown option, or a weighting that needs entropies.
    """
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    if old_log_probs is None:
        raise HostError(
            f"{NAME} needs old_log_probs, but this trainer does not pass them",
            fix=f"start verl.trainer.main_ppo of verl {VERL.tested}, or a trainer that derives from verl's and calls "
            "its __init__",
        )
    options = read_options(config)
    options.refuse_without_entropies("a program that calls this estimator itself")
    rewards = token_level_rewards.sum(-1, keepdim=True)
    algorithm = config if config is not None else {}
    advantages, _returns = get_adv_estimator_fn(weighted_estimator(config))(
        token_level_rewards=rewards,
        response_mask=torch.ones_like(rewards),
        index=index,
        norm_adv_by_std_in_grpo=algorithm.get("norm_adv_by_std_in_grpo", True),
        config=algorithm,
    )
    group = group_numbers(index) if options.scope == "group" else None
    weighted, _statistics = reweight(old_log_probs, advantages[:, 0], response_mask, group, options.load_weighting())
    return weighted, weighted
