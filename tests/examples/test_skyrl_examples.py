"""examples/skyrl, without SkyRL."""

from interpreter import bash
from test_recipes import table as paper_table

ALGORITHM, OPTIMIZER = "trainer.algorithm", "trainer.policy.optimizer_config"
# SkyRL's setting -> verl's key in the table of examples/paper.md, and how verl's value reads in SkyRL
SETTINGS = {
    f"{OPTIMIZER}.lr": "actor_rollout_ref.actor.optim.lr",
    f"{OPTIMIZER}.weight_decay": "actor_rollout_ref.actor.optim.weight_decay",
    f"{OPTIMIZER}.adam_betas": "actor_rollout_ref.actor.optim.betas",
    f"{OPTIMIZER}.scheduler": "actor_rollout_ref.actor.optim.lr_scheduler_type",
    f"{OPTIMIZER}.max_grad_norm": "actor_rollout_ref.actor.optim.clip_grad",
    f"{ALGORITHM}.loss_reduction": "actor_rollout_ref.actor.loss_agg_mode",
    f"{ALGORITHM}.grpo_norm_by_std": "algorithm.norm_adv_by_std_in_grpo",
    f"{ALGORITHM}.use_kl_loss": "actor_rollout_ref.actor.use_kl_loss",
    f"{ALGORITHM}.kl_estimator_type": "actor_rollout_ref.actor.kl_loss_type",
    f"{ALGORITHM}.kl_loss_coef": "actor_rollout_ref.actor.kl_loss_coef",
    "trainer.train_batch_size": "data.train_batch_size",
    "trainer.policy_mini_batch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
    "trainer.update_epochs_per_batch": "actor_rollout_ref.actor.ppo_epochs",
    "trainer.max_training_steps": "trainer.total_training_steps",
    "trainer.ckpt_interval": "trainer.save_freq",
    "trainer.max_prompt_length": "data.max_prompt_length",
    "trainer.seed": "data.seed",
    "generator.n_samples_per_prompt": "actor_rollout_ref.rollout.n",
    "generator.sampling_params.temperature": "actor_rollout_ref.rollout.temperature",
    "generator.sampling_params.top_p": "actor_rollout_ref.rollout.top_p",
    "generator.sampling_params.max_generate_length": "data.max_response_length",
}
IN_SKYRL = {"seq-mean-token-mean": "sequence_mean", "low_var_kl": "k3", "True": "true"}


def test_the_recipe_has_the_values_of_the_table():
    table = {key: value for condition, key, value in paper_table() if condition in ("", "FSDP", "1.5B")}
    settings = dict(line.split("=", 1) for line in bash("skyrl/paper.sh", DRY_RUN="1").stdout.splitlines())
    wanted = {name: IN_SKYRL.get(table[key], table[key]) for name, key in SETTINGS.items()}
    assert {name: settings[name] for name in wanted} == wanted
    warm_up = float(table["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"])
    assert int(settings[f"{OPTIMIZER}.num_warmup_steps"]) == warm_up * int(table["trainer.total_training_steps"])
    assert settings[f"{ALGORITHM}.advantage_estimator"] == "grpo"
    assert (
        settings[f"{ALGORITHM}.use_entropy_loss"] == "false" and table["actor_rollout_ref.actor.entropy_coeff"] == "0"
    )
