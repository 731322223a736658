"""What the plugin calls, extends or wraps in SkyRL.

What changes most often from release to release, beside these functions: ``fwd_logprobs_values_reward``, the members of
``PolicyLossType`` and ``AdvantageEstimator``, new fields of ``AlgorithmConfig``, its pins of vLLM, ``requires-python``.
"""

from cw_plugin.hosts.host import Need

_MODULE = "skyrl.train.trainer"

NEEDS = (
    Need(_MODULE, "RayPPOTrainer.compute_advantages_and_returns", ("self", "data"), exactly=True),
    Need(_MODULE, "RayPPOTrainer.train_critic_and_policy", ("self", "data"), exactly=True),
    Need(_MODULE, "RayPPOTrainer._skip_policy_forward", ("self", "training_input"), exactly=True),
)
