"""The installed wheel registers its estimator and its loss with verl, which has no plugin but this one.

Plain verl cannot import its own trainers, because they need packages of its extras. So the hooks in them are not asked
for here; tests/hosts/verl/test_plugin.py does that.
"""

import verl  # noqa: F401  which loads its plugins
from verl.trainer.ppo import core_algos

assert core_algos.get_adv_estimator_fn("cw_grpo").__module__ == "cw_plugin.hosts.verl.estimator"
assert core_algos.get_policy_loss_fn("cw_grpo").__module__ == "cw_plugin.hosts.verl.loss"
