"""Does the runs of plan.py, JOBS at a time, and adds each to RESULTS/metrics.parquet as it ends; run again, it goes on.

    python examples/study/boundary/boundary.py                                             # the boundary study's
    RESULTS=examples/study/sizes/results python examples/study/boundary/boundary.py sizes  # the size study's

JOBS (default 2) processes do one run after another. RESULTS is examples/study/boundary/results by default.
"""

import functools
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from plan import CENTRE, PLANS, SETTINGS, Run

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from study import append, end_with_the_study, run_all  # noqa: E402

RESULTS = Path(os.environ.get("RESULTS", HERE / "results")).resolve()
COLUMNS = [
    "step", "accuracy", "reward", "entropy", "grad_norm", "extreme_gradient_share", "extreme_balance",
    "downweighted_share", "covariance_before", "covariance_after", "failed",
]  # fmt: skip


def finished(folder: Path) -> set[Run]:
    """The runs that metrics.parquet has."""
    path = folder / "metrics.parquet"
    steps = pd.read_parquet(path) if path.exists() else pd.DataFrame()
    rows = steps[steps.columns.intersection(SETTINGS)].drop_duplicates().fillna(asdict(CENTRE))  # older than a setting
    return {Run(**row) for row in rows.to_dict("records")}


def add(folder: Path, run: Run, rows: list[dict[str, float]]) -> None:
    steps = pd.DataFrame(rows, columns=COLUMNS, dtype="float32").assign(**asdict(run))
    append(folder / "metrics.parquet", steps[[*SETTINGS, *COLUMNS]])


def train(run: Run) -> list[dict[str, float]]:
    """In a process of its own, which imports torch and TRL once for all its runs."""
    from train import train as train_with_trl

    return train_with_trl(run)


def main(study: str = "boundary") -> None:
    done = finished(RESULTS)
    waiting = [run for run in PLANS[study]() if run not in done]
    print(f"{len(done)} runs are done, {len(waiting)} are not", flush=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(int(os.environ.get("JOBS", "2")), spawn, end_with_the_study) as pool:
        run_all(pool, train, waiting, functools.partial(add, RESULTS))


if __name__ == "__main__":
    if set(sys.argv[1:]) - set(PLANS):
        sys.exit(__doc__)
    main(*sys.argv[1:])
