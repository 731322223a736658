"""``cw-grpo evaluate``: models, checkpoints and runs on benchmarks, by verl's own validation.

``OUT/MODEL/BENCHMARK.jsonl`` is verl's dump of the graded answers, ``.yaml`` beside it what they were asked with.
"""
