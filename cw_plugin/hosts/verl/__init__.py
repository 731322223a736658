"""Only this folder touches verl: estimator, policy loss, options, and hooks (listed in hooks.py)."""

TESTED = ("0.7.1", "0.9.1")  # the oldest and the newest release of verl that the tests run
NAME = "cw_grpo"  # the name of the advantage estimator, the policy loss, and the options under ``algorithm``
BENCHMARK_TRAINER = "cw_grpo_benchmarks"  # the trainer_mode with which ``cw-grpo evaluate`` starts verl
