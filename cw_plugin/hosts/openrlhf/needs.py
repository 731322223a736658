"""What the plugin calls, extends or wraps in OpenRLHF.

What changes most often from release to release, beside these functions: the names of arguments (refused_settings.py).
"""

from cw_plugin.hosts.host import Need

MAKER = "openrlhf.trainer.ppo_utils.experience_maker"
TRAINER = "openrlhf.trainer.ppo_trainer"

ADVANTAGES = Need(MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", ("self", "experiences"), exactly=True)
TRAIN_STEP = Need(TRAINER, "BasePPOTrainer.train_step", ("self", "rollout_samples", "global_step"), exactly=True)
NEEDS = (ADVANTAGES, TRAIN_STEP)
