"""The installed wheel registers its estimator and its loss with verl, which has no plugin but this one."""

import verl  # noqa: F401  which loads its plugins
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos

from cw_plugin.verl_integration.hooks import require_hooks

assert core_algos.get_adv_estimator_fn("cw_grpo").__module__ == "cw_plugin.verl_integration.estimator"
assert core_algos.get_policy_loss_fn("cw_grpo").__module__ == "cw_plugin.verl_integration.loss"
for uses_v1 in (True, False):
    require_hooks(OmegaConf.create({"trainer": {"use_v1": uses_v1}}))
