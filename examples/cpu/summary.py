"""Print what a finished quickstart run has shown: its validation before and after, and where its files are.

python summary.py RUN_DIR
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from cw_plugin.reports.runs import read_run

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


def main() -> None:
    folder = Path(sys.argv[1])
    run = read_run(folder)  # of every start, if there were several
    if run.series("actor/entropy").empty:
        sys.exit(f"{folder} holds no training step; see {folder}/train.log")
    shown = {}
    for name in run.metrics:  # val-core/SOURCE/acc/mean@4 and val-aux/...
        *_, what, how = ["", *name.split("/")]
        if name.startswith("val-") and what in VALIDATION and how.startswith("mean@"):
            shown[VALIDATION[what]] = run.series(name)
    for what, values in shown.items():
        steps = f"step {values.index[0]}", f"step {values.index[-1]}"
        if len(values) > 1:
            print(f"validation: {what:<18}  {values.iloc[0]:.3f} ({steps[0]})  {values.iloc[-1]:.3f} ({steps[1]})")
    for what, file in FILES.items():
        if (folder / file).exists():
            print(f"{what:<21} {folder}/{file}")
    if (folder / "tensorboard").exists():
        curves = shlex.join([f"{sys.prefix}/bin/tensorboard", "--logdir", f"{folder}/tensorboard"])
        print(f"{'entropy curve':<21} {curves}")


if __name__ == "__main__":
    main()
