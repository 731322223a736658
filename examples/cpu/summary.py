"""Print what a finished quickstart run did: validation before and after, entropy, weights, and where the files lie.

python summary.py RUN_DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

from launch import read_metrics
from rich.console import Console
from rich.table import Table


def main() -> None:
    run = Path(sys.argv[1])
    records = read_metrics(run / "metrics.jsonl")
    validations = [r for r in records if any(key.startswith("val-core/") for key in r["data"])]
    steps = [r for r in records if "actor/entropy" in r["data"]]
    if not steps:
        sys.exit(f"{run}/metrics.jsonl holds no training step; see {run}/train.log")

    console = Console()
    if len(validations) > 1:
        table = Table(title="Validation on held-out problems", title_justify="left")
        for column in ("", f"step {validations[0]['step']}", f"step {validations[-1]['step']}"):
            table.add_column(column, justify="right" if column else "left")
        names = {"acc": "accuracy", "format": "format", "score": "score"}
        for key in sorted(validations[0]["data"]):
            label = (
                names.get(key.split("/")[-2])
                if key.startswith("val-") and key.split("/")[-1].startswith("mean@")
                else None
            )
            if label and key in validations[-1]["data"]:
                table.add_row(
                    f"{label}, {key.split('/')[-1]}",
                    *(f"{r['data'][key]:.3f}" for r in (validations[0], validations[-1])),
                )
        console.print(table)

    table = Table(title="Training", title_justify="left")
    for column in ("step", "reward", "entropy", "Cov before", "Cov after", "sigma", "tokens w<0.5", "effective share"):
        table.add_column(column, justify="right")
    keys = ("critic/score/mean", "actor/entropy") + tuple(
        f"cw_grpo/{name}"
        for name in ("covariance_before", "covariance_after", "sigma", "downweighted_share", "effective_sample_share")
    )
    shown = steps if len(steps) <= 12 else [steps[round(i * (len(steps) - 1) / 11)] for i in range(12)]
    for record in shown:
        table.add_row(str(record["step"]), *(f"{record['data'][k]:.4f}" if k in record["data"] else "-" for k in keys))
    console.print(table)
    console.print(f"\nmetrics, one JSON object a step   {run}/metrics.jsonl", highlight=False)
    console.print(f"everything main_ppo printed       {run}/train.log", highlight=False)
    console.print(f"validation answers                {run}/validation/", highlight=False)
    console.print(
        f"the entropy curve                 .venv/bin/tensorboard --logdir {run}/tensorboard   (actor/entropy)",
        highlight=False,
    )


if __name__ == "__main__":
    main()
