"""Benchmarks by verl's own validation, resumable answer by answer: what ``cw-grpo evaluate`` runs."""
