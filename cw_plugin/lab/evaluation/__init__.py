"""``cw-grpo evaluate``: verl asks models the benchmarks (ask.py); graded_answers.py and scores.py read the answers.

A benchmark is a set of questions with their answers, such as AIME24.
"""

TRAINER_MODE = "cw_grpo_evaluation"  # the trainer.v1.trainer_mode with which verl is started
