"""CW-GRPO for verl: hooks.py lists every change to verl; trainer.py leads from there to the weights."""

NAME = "cw_grpo"  # the name of the advantage estimator, the policy loss, and the options under ``algorithm``
LATEST = "latest_checkpointed_iteration.txt"  # the step of the last checkpoint, which verl writes beside them
