"""Evaluation on benchmarks by verl's own validation: ``cw-grpo evaluate``. It can resume after any answer."""
