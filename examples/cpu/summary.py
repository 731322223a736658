"""Summarise a finished quickstart run: validation before and after, entropy, weights, and the paths of its files.

python summary.py RUN_DIR
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cw_plugin.reports.runs import Series, read_run

COLUMNS = {
    "reward": "critic/score/mean",
    "entropy": "actor/entropy",
    "grad norm": "actor/grad_norm",
    "Cov before": "cw_grpo/covariance_before",
    "after": "cw_grpo/covariance_after",
    "sigma": "cw_grpo/sigma",
    "w < 0.5": "cw_grpo/downweighted_share",
}
VALIDATION = {"acc": "right answers", "format": "matched think tags", "score": "reward"}

FILES = {  # of verl's quickstart, and of TRL's
    "metrics of each step": "metrics.jsonl",
    "metrics of the run": "trainer_state.json",
    "output of training": "train.log",
    "validation answers": "validation/",
    "trained model": "model/",
    "tables and figures": "report/report.html",
}


def validation_means(metrics: dict[str, Series]) -> dict[str, Series]:
    """What is shown of a validation -> its values; verl names them val-core/<data source>/acc/mean@4, or val-aux/..."""
    means = {}
    for key, series in metrics.items():
        parts = key.split("/")
        if key.startswith("val-") and parts[-1].startswith("mean@") and parts[-2] in VALIDATION:
            means[VALIDATION[parts[-2]]] = series
    return means


def main() -> None:
    run = Path(sys.argv[1])
    metrics = read_run(run).metrics  # of every start, if there were several
    steps = sorted(metrics.get("actor/entropy", {}))
    if not steps:
        sys.exit(f"{run} holds no training step; see {run}/train.log")
    console = Console(width=100, highlight=False)

    table = Table(title="Training", title_justify="left")
    for name in ("step", *COLUMNS):
        table.add_column(name, justify="right")
    for step in steps if len(steps) <= 10 else [steps[round(i * (len(steps) - 1) / 9)] for i in range(10)]:
        values = (metrics.get(key, {}).get(step) for key in COLUMNS.values())
        table.add_row(str(step), *("-" if value is None else f"{value:.4f}" for value in values))
    console.print(table)

    means = validation_means(metrics)
    validated = sorted({step for series in means.values() for step in series})
    if len(validated) > 1:
        shown = (validated[0], validated[-1])
        table = Table(title="Validation on held-out problems", title_justify="left")
        for name in ("mean", *(f"step {step}" for step in shown)):
            table.add_column(name, justify="left" if name == "mean" else "right")
        for name, series in means.items():
            table.add_row(name, *(f"{series[step]:.3f}" for step in shown))
        console.print(table)

    for what, file in FILES.items():
        if (run / file).exists():
            console.print(f"{what:<21}", f"{run}/{file}", soft_wrap=True)
    for page in sorted((run / "report").glob("tokens-*.html")):
        console.print("tokens and weights   ", str(page), soft_wrap=True)
    if (run / "tensorboard").exists():
        curve = shlex.join([f"{sys.prefix}/bin/tensorboard", "--logdir", f"{run}/tensorboard"])
        console.print("entropy curve        ", curve, soft_wrap=True)


if __name__ == "__main__":
    main()
