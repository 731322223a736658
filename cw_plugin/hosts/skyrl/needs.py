"""What the plugin calls, extends or wraps in SkyRL.

What changes most often from release to release, beside these functions: the members of ``PolicyLossType`` and
``AdvantageEstimator``, new fields of ``AlgorithmConfig``, its pins of vLLM, ``requires-python``.
"""

from cw_plugin.hosts.host import Need

_MODULE = "skyrl.train.trainer"

# Which a trainer takes from RayPPOTrainer: they make log-probs and advantages, and train on them.
NEEDS = (
    Need(_MODULE, "RayPPOTrainer.fwd_logprobs_values_reward", ("self", "training_input")),
    Need(_MODULE, "RayPPOTrainer._skip_policy_forward", ("self", "training_input"), exactly=True),
    Need(_MODULE, "RayPPOTrainer.compute_advantages_and_returns", ("self", "data"), exactly=True),
    Need(_MODULE, "RayPPOTrainer.train_critic_and_policy", ("self", "data"), exactly=True),
)
