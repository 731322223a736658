"""``cw-grpo evaluate``: verl asks models the benchmarks (ask.py); the reports read the graded answers (answers.py)."""
