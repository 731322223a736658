"""For a verl that has cw_grpo itself, with this package installed beside it: run by test_patches.py."""

from __future__ import annotations

import torch
from omegaconf import OmegaConf
from test_verl import actor_config, loss_arguments
from trainers import advantages, legacy_trainer, trainer_batch, v1_trainer, validate, weighted
from verl.trainer.ppo import core_algos

from cw_plugin.verl_integration import run
from cw_plugin.verl_integration.hooks import hooks_of, require_hooks
from cw_plugin.verl_integration.loss import compute_policy_loss_cw_grpo

native_estimator, native_loss = core_algos.get_adv_estimator_fn("cw_grpo"), core_algos.get_policy_loss_fn("cw_grpo")
assert {native_estimator.__module__, native_loss.__module__} == {core_algos.__name__}

for norm, outputs, scope in ((True, 1, "group"), (False, 3, "group"), (True, 3, "batch")):
    data, keys = trainer_batch(outputs=outputs)
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": norm, "cw_grpo": {"scope": scope}})
    native = advantages("cw_grpo", data, keys, config)  # as the trainer calls it, through the hooks
    plain = advantages("grpo", data, keys, config)
    torch.testing.assert_close(native.double(), weighted(data, plain, scope), rtol=1e-5, atol=1e-5)
    assert (native - plain).abs().max() > 0.1

arguments = loss_arguments()
losses = [function(**arguments, config=actor_config()) for function in (native_loss, compute_policy_loss_cw_grpo)]
torch.testing.assert_close(losses[0][0], losses[1][0])
torch.testing.assert_close(*(torch.autograd.grad(loss, arguments["log_prob"])[0] for loss, _ in losses))
assert not [name for name in losses[0][1] if name.startswith("cw_grpo/")]

# The hooks are in place, and do nothing: the plugin does not take the run for its own.
for make in (v1_trainer, legacy_trainer):
    config = make("algorithm.adv_estimator=cw_grpo").config
    require_hooks(config)
    assert len(hooks_of(config)) == 4 and run.current() is None

# The plugin refuses nothing: neither verl's own keys, nor its own, which the quickstart sets.
validate("algorithm.adv_estimator=cw_grpo", "algorithm.cw_grpo.scope=batch", "+algorithm.cw_grpo.record_every=5")
try:
    validate("algorithm.adv_estimator=cw_grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo")
except ValueError as error:
    assert type(error) is ValueError  # verl's check, not the plugin's
    print("refused:", error)
