"""Makes the runs of horizon.py that RESULTS lacks, one after the other; run again, it goes on.

    RESULTS=examples/study/horizon/results python examples/study/horizon/make_runs.py MODEL

MODEL is the folder that pretrained/model.py writes, and the training is that of pretrained/train.py. The runs of a
stage depend on the results of the stage before. A second process makes other runs of a stage, and waits for the first
one where the stage ends.
"""

import os
import sys
import time
from pathlib import Path

import torch
import typer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "pretrained")]
import horizon  # noqa: E402
from arithmetic import problems  # noqa: E402
from stages import Run  # noqa: E402
from train import train_missing  # noqa: E402

WAIT = 30  # seconds from one look at a stage that another process ends to the next


def complete(runs: list[Run], results: Path, model: Path) -> None:
    """Do all runs of a stage; those of another process that is killed, too."""
    held_out, trained_on = horizon.held_out_and_trained(problems())
    while True:
        train_missing(runs, results, model, held_out, trained_on)
        if all((results / f"{run.name}.parquet").exists() for run in runs):
            return
        time.sleep(WAIT)


def main(model: Path) -> None:
    results = Path(os.environ["RESULTS"]).resolve()
    results.mkdir(parents=True, exist_ok=True)
    complete(horizon.rate_runs(), results, model)
    rates = horizon.best_rates(results)
    runs = horizon.horizon_runs(rates)
    complete(runs, results, model)
    if horizon.collapses(results, [run for run in runs if run.method == "grpo"]) < horizon.COLLAPSED_RUNS:
        complete(horizon.collapse_runs(rates), results, model)


if __name__ == "__main__":
    if "RESULTS" not in os.environ:
        sys.exit(__doc__)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    typer.run(main)
