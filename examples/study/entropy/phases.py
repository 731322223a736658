"""Does the entropy study's runs in the order of its plan, README.md; run again, it goes on where it was interrupted.

    RESULTS=examples/study/entropy/results python examples/study/entropy/phases.py

GRPO alone looks for settings in which it collapses. At each setting the methods then look for their learning rates, and
are compared over five seeds. Runs are added to RESULTS/metrics.parquet as they end.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "boundary")]
import plan  # noqa: E402
from plan import SEEDS, Run  # noqa: E402

METHODS = {
    "grpo": "GRPO",
    "cw_grpo": "CW-GRPO",
    "negative": "CW-GRPO, negative only",
    "positive": "CW-GRPO, positive only",
    "clip_cov": "Clip-Cov",
    "entropy_bonus": "GRPO, entropy bonus",
    "clip_higher": "GRPO, higher clip",
}
ANSWERS = 64  # to each held-out problem
CORE_HOURS = 12
WINDOW = 25  # steps that the entropy is averaged over
LOW, FALL, SURE = 0.1, 0.1, 0.05  # of the starting entropy; of accuracy, from a run's best; of p
EARLIEST = 150  # step at which a setting may end
GAIN = 0.02  # of pass@1, that both runs of a compared pair have at least
SMALL = 1.0  # point of pass@16; less is not worth knowing
FEWEST = 3  # pairs; also runs of GRPO, if their entropy is what has collapsed


def setting(updates: int, steps: int, width: int = 64) -> Run:
    return Run(width=width, updates=updates, steps=steps, seed=0, answers=ANSWERS, first=20)


# Where GRPO may collapse, and the learning rates that each method tries there; then where it does not.
FAMILIES = {
    setting(updates=8, steps=300): ("5e-5", "1e-4", "2e-4"),
    setting(updates=2, steps=1000): ("1e-4", "2e-4", "5e-4"),
    setting(updates=2, steps=500, width=128): ("5e-5", "1e-4", "2e-4"),
}
CENTRE, CENTRE_RATES = setting(updates=2, steps=100), ("3e-5", "6e-5", "1.2e-4")


def read(file: Path) -> pd.DataFrame:
    """All steps of all runs, with ``entropy`` as a moving mean; at validations, ``right`` is an array."""
    steps = pd.read_parquet(file).astype({"accuracy": float, "entropy": float})
    by_run = steps.groupby(plan.SETTINGS, sort=False).entropy
    return steps.assign(entropy=by_run.transform(lambda entropy: entropy.rolling(WINDOW).mean()))


def beginning(steps: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The steps of a run by step, also if it is the beginning of a longer one; empty if it is not done."""
    same = np.logical_and.reduce([steps[of] == getattr(run, of) for of in ("method", "lr", "width", "updates", "seed")])
    rows = steps[same & (steps.step <= run.steps)].set_index("step")
    return rows if run.steps in rows.accuracy.dropna() else rows[:0]


def tried(point: Run, method: str, rates: tuple[str, ...]) -> list[Run]:
    return [replace(point, method=method, lr=lr) for lr in rates]


def best(steps: pd.DataFrame, point: Run, method: str, rates: tuple[str, ...]) -> Run:
    """The run of a search that ends with the highest accuracy."""
    return max(tried(point, method, rates), key=lambda run: beginning(steps, run).accuracy[run.steps])


def collapsed(run: pd.DataFrame) -> bool:
    """Whether entropy or pass@64 has collapsed at the last step of a run, and accuracy has not."""
    start, end = run.iloc[0], run.iloc[-1]
    if end.accuracy < max(start.accuracy, run.accuracy.max() - FALL):
        return False
    lost = int(np.sum((start.right > 0) & (end.right == 0)))
    won = int(np.sum((start.right == 0) & (end.right > 0)))
    fewer_solved = lost > won and stats.binomtest(lost, lost + won).pvalue < SURE  # McNemar's exact test
    return bool(fewer_solved or end.entropy < LOW * run.entropy[WINDOW])


def settings(steps: pd.DataFrame) -> dict[Run, tuple[str, ...]]:
    """Of each family the longest training in which GRPO collapses at its best learning rate, and the rates that each
    method tries there; the cheapest first."""
    found, seconds = {}, {}
    for family, rates in FAMILIES.items():
        points = [replace(family, steps=step) for step in family.validations if step >= EARLIEST]
        for point in reversed(points):
            if collapsed(beginning(steps, best(steps, point, "grpo", rates))):
                whole = pd.concat([beginning(steps, run) for run in tried(family, "grpo", rates)])
                found[point], seconds[point] = rates, whole.seconds.sum() * point.steps / family.steps
                break
    return {point: found[point] for point in sorted(found, key=seconds.__getitem__)}


def search() -> list[Run]:
    return [run for family, rates in FAMILIES.items() for run in tried(family, "grpo", rates)]


def points(steps: pd.DataFrame) -> dict[Run, tuple[str, ...]]:
    """The settings at which methods are compared, in their order, and the learning rates tried there."""
    found = list(settings(steps).items())
    if not found:
        sys.exit("GRPO collapses at no setting of the search, so there is nothing to compare")
    return dict([found[0], (CENTRE, CENTRE_RATES), *found[1:2]])


def phases(file: Path) -> Iterator[list[Run]]:
    """Runs that may be done at the same time; what comes later depends on what came out."""
    yield search()
    for point, rates in points(read(file)).items():
        searched = [run for method in METHODS for run in tried(point, method, rates)]
        yield [run for run in searched if beginning(read(file), run).empty]
        chosen = [best(read(file), point, method, rates) for method in METHODS]
        for seed in SEEDS:
            yield [replace(run, seed=seed) for run in chosen]


def main(file: Path) -> None:
    import train  # with TRL, which the page does without

    with train.processes() as pool:
        for runs in phases(file):
            train.train_missing(pool, runs, file)
            hours = pd.read_parquet(file, columns=["seconds"]).seconds.sum() / 3600
            print(f"{hours:.1f} of {CORE_HOURS} core hours", flush=True)
            if hours > CORE_HOURS:
                return


if __name__ == "__main__":
    if len(sys.argv) != 1 or "RESULTS" not in os.environ:
        sys.exit(__doc__)
    main(Path(os.environ["RESULTS"]).resolve() / "metrics.parquet")
