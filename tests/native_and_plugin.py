"""For a verl that has cw_grpo itself, with this package installed beside it: run by test_patches.py."""

from __future__ import annotations

import itertools

import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from test_estimator_and_loss import actor_config, advantages, loss_arguments, trainer_batch
from trainers import legacy_trainer, v1_trainer
from verl.trainer.ppo import core_algos
from verl.utils import config as verl_config

from cw_plugin.verl_integration import run
from cw_plugin.verl_integration.estimator import TrainerBatch, batch_of_trainer, compute_cw_grpo_advantage
from cw_plugin.verl_integration.hooks import hooks_of, require_hooks
from cw_plugin.verl_integration.loss import compute_policy_loss_cw_grpo

native_estimator, native_loss = core_algos.get_adv_estimator_fn("cw_grpo"), core_algos.get_policy_loss_fn("cw_grpo")
assert {native_estimator.__module__, native_loss.__module__} == {core_algos.__name__}

differences = []
for seed, norm, outputs, scope in itertools.product(range(3), (True, False), (1, 3), ("group", "batch")):
    data, keys = trainer_batch(seed, outputs=outputs)
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": norm, "cw_grpo": {"scope": scope}})
    token = batch_of_trainer.set(TrainerBatch(None, keys, sequences=list))
    try:
        ours, _ = compute_cw_grpo_advantage(
            data.batch["token_level_rewards"],
            data.batch["response_mask"],
            data.non_tensor_batch["uid"],
            config,
            old_log_probs=data.batch["old_log_probs"],
        )
    finally:
        batch_of_trainer.reset(token)
    native, _ = advantages("cw_grpo", data, keys, config)  # as the trainer calls it, through the hooks
    torch.testing.assert_close(native, ours, rtol=1e-5, atol=1e-5)
    plain, _ = advantages("grpo", data, keys, config)
    differences.append((native - plain).abs().max().item())
assert min(differences) > 0.1

for seed in range(3):
    arguments = loss_arguments(seed)
    kwargs = {**arguments, "config": actor_config()}
    (native, metrics), (ours, _) = native_loss(**kwargs), compute_policy_loss_cw_grpo(**kwargs)
    torch.testing.assert_close(native, ours)
    gradients = [torch.autograd.grad(loss, arguments["log_prob"])[0] for loss in (native, ours)]
    torch.testing.assert_close(*gradients)
    assert not [name for name in metrics if name.startswith("cw_grpo/")]

# The hooks are in place, and do nothing: the plugin does not take the run for its own.
for make in (v1_trainer, legacy_trainer):
    config = make("algorithm.adv_estimator=cw_grpo").config
    require_hooks(config)
    assert len(hooks_of(config)) == 4 and run.current() is None


def validate(*overrides: str) -> None:
    sizes = ["actor.ppo_micro_batch_size_per_gpu=1", "rollout.log_prob_micro_batch_size_per_gpu=1"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [*(f"actor_rollout_ref.{size}" for size in sizes), *overrides])
    verl_config.validate_config(config=config, use_reference_policy=False, use_critic=False)


# The plugin refuses nothing: neither verl's own keys, nor its own, which the quickstart sets.
validate("algorithm.adv_estimator=cw_grpo", "algorithm.cw_grpo.scope=batch", "+algorithm.cw_grpo.record_every=5")
try:
    validate("algorithm.adv_estimator=cw_grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo")
except ValueError as error:
    assert type(error) is ValueError  # verl's check, not the plugin's
    print("refused:", error)
