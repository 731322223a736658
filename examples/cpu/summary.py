"""Print what a finished quickstart run did: validation before and after, entropy, weights, and where the files lie.

python summary.py RUN_DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

from launch import read_metrics
from rich.console import Console
from rich.table import Table

COLUMNS = {
    "reward": "critic/score/mean",
    "entropy": "actor/entropy",
    "Cov before": "cw_grpo/covariance_before",
    "after": "cw_grpo/covariance_after",
    "sigma": "cw_grpo/sigma",
    "w < 0.5": "cw_grpo/downweighted_share",
    "effective": "cw_grpo/effective_sample_share",
}
VALIDATION = {"acc": "right answers", "format": "matched think tags", "score": "reward"}


def validation_means(record: dict) -> dict[str, float]:
    """verl names them val-core/<data source>/acc/mean@4, or val-aux/..."""
    means = {}
    for key, value in record["data"].items():
        parts = key.split("/")
        if key.startswith("val-") and parts[-1].startswith("mean@") and parts[-2] in VALIDATION:
            means[VALIDATION[parts[-2]]] = value
    return means


def main() -> None:
    run = Path(sys.argv[1])
    records = read_metrics(run / "metrics.jsonl")
    validations = [record for record in records if any(key.startswith("val-core/") for key in record["data"])]
    steps = [record for record in records if "actor/entropy" in record["data"]]
    if not steps:
        sys.exit(f"{run}/metrics.jsonl holds no training step; see {run}/train.log")
    console = Console(width=100, highlight=False)

    table = Table(title="Training", title_justify="left")
    for name in ("step", *COLUMNS):
        table.add_column(name, justify="right")
    shown = steps if len(steps) <= 10 else [steps[round(i * (len(steps) - 1) / 9)] for i in range(10)]
    for record in shown:
        values = (record["data"].get(key) for key in COLUMNS.values())
        table.add_row(str(record["step"]), *("-" if value is None else f"{value:.4f}" for value in values))
    console.print(table)

    if len(validations) > 1:
        before, after = validations[0], validations[-1]
        table = Table(title="Validation on held-out problems", title_justify="left")
        for name in ("mean", f"step {before['step']}", f"step {after['step']}"):
            table.add_column(name, justify="left" if name == "mean" else "right")
        later = validation_means(after)
        for name, value in validation_means(before).items():
            table.add_row(name, f"{value:.3f}", f"{later[name]:.3f}")
        console.print(table)

    console.print("metrics of each step ", f"{run}/metrics.jsonl", soft_wrap=True)
    console.print("output of main_ppo   ", f"{run}/train.log", soft_wrap=True)
    console.print("validation answers   ", f"{run}/validation/", soft_wrap=True)
    console.print("tables and figures   ", f"{run}/report/report.html", soft_wrap=True)
    console.print("entropy curve        ", f"{sys.prefix}/bin/tensorboard --logdir {run}/tensorboard", soft_wrap=True)


if __name__ == "__main__":
    main()
