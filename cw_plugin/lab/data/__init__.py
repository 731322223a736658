"""Open-RS and the five benchmarks of the paper as parquet files for verl: what ``cw-grpo prepare`` runs."""

CHECKED_BY = "cw_plugin.version"  # in a file's metadata: its ground truths have been graded
