"""Print what a finished quickstart run has shown: its validation before and after, and where its files are.

python summary.py RUN_DIR
"""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from cw_plugin.lab.reports.runs import Run, read_run

VALIDATION = {"acc": "right answers", "format": "matched think tags", "score": "reward"}
FILES = {  # of verl's quickstart, and of TRL's
    "metrics of each step": "metrics.jsonl",
    "metrics of the run": "trainer_state.json",
    "output of training": "train.log",
    "validation answers": "validation/",
    "trained model": "model/",
    "tables and figures": "report/report.html",
    "tokens and weights": "report/tokens-1.html",
}


def validated(run: Run) -> Iterator[tuple[str, pd.Series]]:
    """What validation has measured, in words, and its values by step."""
    for name in run.metrics:  # val-core/SOURCE/acc/mean@4 and val-aux/...
        if name.startswith("val-") and "/mean@" in name:
            what = name.split("/")[-2]
            if what in VALIDATION:
                yield VALIDATION[what], run.series(name)


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    run = read_run(folder)  # of every start, if there were several
    if run.series("actor/entropy").empty:
        sys.exit(f"{folder} holds no training step; see {folder}/train.log")
    for what, values in validated(run):
        if len(values) > 1:
            ends = [f"{value:.3f} (step {step})" for step, value in values.iloc[[0, -1]].items()]
            print(f"validation: {what:<18}  {'  '.join(ends)}")
    for what, file in FILES.items():
        if (folder / file).exists():
            print(f"{what:<21} {folder}/{file}")
    if (folder / "tensorboard").exists():
        curves = shlex.join([f"{sys.prefix}/bin/tensorboard", "--logdir", f"{folder}/tensorboard"])
        print(f"{'entropy curve':<21} {curves}")


if __name__ == "__main__":
    main()
