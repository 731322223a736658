"""What the plugin calls, extends or wraps in verl, which has three trainers.

They are V1, the legacy one, and that of one_step_off_policy and fully_async_policy, which derives from the legacy one.
"""

from cw_plugin.hosts.host import Need

_V1 = "verl.trainer.ppo.v1.trainer_base"
_LEGACY = "verl.trainer.ppo.ray_trainer"
_SEPARATE = "verl.experimental.separation.ray_trainer"

# What hooks.py wraps.
BEGIN_V1 = Need(_V1, "PPOTrainer.__init__", ("self", "config"))
BEGIN_LEGACY = Need(_LEGACY, "RayPPOTrainer.__init__", ("self", "config"))
BEGIN_SEPARATE = Need(_SEPARATE, "SeparateRayPPOTrainer._init_resource_pools", ("self",))
VALIDATE = Need("verl.utils.config", "validate_config", ("config",))
RUN_PPO = Need("verl.trainer.main_ppo", "run_ppo", ("config",))

# What a run needs with each trainer: besides the hooks, the functions that trainer.py replaces while that trainer
# computes advantages.
NEEDS_OF_V1 = (
    BEGIN_V1,
    VALIDATE,
    Need(_V1, "PPOTrainer._compute_advantage", ("self", "batch", "metrics")),
    Need(_V1, "compute_advantage_for_multi_trajectories", ("data", "batch_keys", "adv_estimator")),
)
NEEDS_OF_LEGACY = (
    BEGIN_LEGACY,
    VALIDATE,
    Need(_LEGACY, "RayPPOTrainer.fit", ("self",)),
    Need(_LEGACY, "compute_advantage", ("data", "adv_estimator")),
    Need(_LEGACY, "compute_data_metrics", ("batch",)),
)
NEEDS_OF_SEPARATE = (
    BEGIN_SEPARATE,
    VALIDATE,
    Need(_SEPARATE, "SeparateRayPPOTrainer._fit_compute_advantage", ("self", "batch"), line="compute_advantage("),
    Need(_SEPARATE, "compute_advantage", ("data", "adv_estimator")),
)
# With weights that need entropies, the legacy trainer needs it, too, and so does the one that derives from it.
OLD_LOG_PROB = Need(_LEGACY, "RayPPOTrainer._compute_old_log_prob", ("self", "batch"))
