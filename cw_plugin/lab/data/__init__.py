"""Open-RS and the five benchmarks of the paper as parquet files for verl: what ``cw-grpo prepare`` runs."""

CHECKED_BY = "cw_plugin.version"  # in a file's metadata: math-verify has read its ground truths
