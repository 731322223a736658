"""Open-RS and the five benchmarks of the paper as parquet files for verl: what ``cw-grpo prepare`` runs."""
