"""Only this folder touches verl: estimator, policy loss, options, and hooks (listed in hooks.py)."""

NAME = "cw_grpo"  # the name of the advantage estimator, the policy loss, and the options under ``algorithm``
BENCHMARKS = "cw_grpo_benchmarks"  # the trainer_mode with which ``cw-grpo evaluate`` starts verl
