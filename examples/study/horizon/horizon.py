"""The horizon study: its runs, its problems, and the differences that it can see.

python examples/study/horizon/horizon.py    # prints the power, from the spread of the first study's runs
"""

import random
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import typer
from scipy import stats

HERE = Path(__file__).resolve().parent
PRETRAINED = HERE.parent / "pretrained"
sys.path.append(str(PRETRAINED))
from arithmetic import Problem, operation  # noqa: E402
from stages import BOTH, HELD_OUT, TRIES, Run, each  # noqa: E402

RATES = ("3e-6", "1e-5", "3e-5")
RATE_SEEDS, RATE_STEPS = (101, 102), 60
SEEDS, STEPS = (201, 202, 203, 204, 205, 206, 207, 208), 180
COLLAPSE_SEEDS = (301, 302, 303, 304)
COLLAPSE_RATE = {"3e-6": "1e-5", "1e-5": "3e-5", "3e-5": "9e-5"}  # about three times the rate
LATE = (140, 160, 180)  # the validations whose mean is compared
SOLVED_FROM = TRIES // 8  # right answers of a solved problem: a guess cannot reach them
FALL = 0.10  # of pass@1, from a run's best validation to its last one, which is a collapse
COLLAPSED_RUNS = 4  # of the runs of GRPO at its own rate, with which "GRPO collapses"
POWER = 0.8


def held_out_and_trained(every: list[Problem]) -> tuple[list[Problem], list[Problem]]:
    """Of all problems, 50 sums and 50 differences to hold out, and all others but the twins of the sums."""
    shuffled = random.Random(11).sample(every, len(every))
    held_out = []
    for sign in "+-":
        found: dict[frozenset[str], Problem] = {}
        for row in shuffled:
            if operation(row) == sign:
                first, _, second = row["question"].split()
                # Two sums of the same numbers are twins, and the first of them stands for both.
                found.setdefault(frozenset((first, second)), row)
        held_out += list(found.values())[: HELD_OUT // 2]
    asked = {row["question"] for row in held_out}
    twins = {" ".join(reversed(question.split())) for question in asked if "+" in question}
    return held_out, [row for row in every if row["question"] not in asked | twins]


def rate_runs() -> list[Run]:
    """The first stage: which rate suits each method."""
    runs = [each(BOTH, rate, RATE_SEEDS) for rate in RATES]
    return [of_horizon(run, RATE_STEPS) for stage in runs for run in stage]


def of_horizon(run: Run, steps: int) -> Run:
    return Run(run.method, run.lr, run.seed, steps, recorded_every=0)


def best_rates(folder: Path) -> dict[str, str]:
    """Of each method, the rate with the highest pass@1, as a mean over the last two validations of its runs."""
    best = {}
    for method in BOTH:
        means = {
            rate: np.mean([last_two(folder, run) for run in rate_runs() if (run.method, run.lr) == (method, rate)])
            for rate in RATES
        }
        best[method] = max(means, key=lambda rate: means[rate])
    return best


def last_two(folder: Path, run: Run) -> float:
    return float(validations(folder, run)["pass@1"].tail(2).mean())


def validations(folder: Path, run: Run) -> pd.DataFrame:
    """The rows of a run's validations after the start; steps in the index."""
    steps = pd.read_parquet(folder / f"{run.name}.parquet").set_index("step")
    return steps[steps["right"].notna() & (steps.index > 0)]


def horizon_runs(rates: dict[str, str]) -> list[Run]:
    """The second stage, seed by seed: each method at its own best rate."""
    return [of_horizon(Run(method, rates[method], seed), STEPS) for seed in SEEDS for method in BOTH]


def collapses(folder: Path, runs: list[Run]) -> int:
    """How many of the runs collapse."""
    return [fell(validations(folder, run)["pass@1"]) for run in runs].count(True)


def fell(pass_1: pd.Series) -> bool:
    """Whether a run ends more than FALL below the pass@1 of its best validation."""
    return bool(pass_1.max() - pass_1.iloc[-1] > FALL)


def collapse_runs(rates: dict[str, str]) -> list[Run]:
    """The third stage: both methods at about three times GRPO's best rate."""
    rate = COLLAPSE_RATE[rates["grpo"]]
    return [of_horizon(run, STEPS) for run in each(BOTH, rate, COLLAPSE_SEEDS)]


def smallest_seen(first: pd.Series, second: pd.Series, seeds: int = len(SEEDS), alpha: float = 0.025) -> float:
    """The difference that a Welch test of ``seeds`` runs a side sees with a probability of POWER.

    The two series have the spread of each side. ``alpha`` is the stricter of Holm's two levels.
    """
    variances = first.var() / seeds, second.var() / seeds
    error = sum(variances) ** 0.5
    freedom = error**4 / sum(variance**2 / (seeds - 1) for variance in variances)
    critical = stats.t.isf(alpha / 2, freedom)
    differences = np.linspace(0, 10, 10_001) * error
    return float(differences[stats.nct.sf(critical, freedom, differences / error).searchsorted(POWER)])


def main() -> None:
    for rate in RATES[1:]:
        outcomes: dict[str, list[pd.Series]] = {"pass@1": [], f"solved by {SOLVED_FROM} of {TRIES}": []}
        for method in BOTH:
            runs = [validations(PRETRAINED / "results", run).tail(2) for run in each(BOTH, rate, (1, 2, 3, 4, 5))
                    if run.method == method]  # fmt: skip
            solved = [rows["right"].map(lambda right: np.mean(right >= SOLVED_FROM)).mean() for rows in runs]
            outcomes["pass@1"].append(pd.Series([rows["pass@1"].astype(float).mean() for rows in runs]))
            outcomes[f"solved by {SOLVED_FROM} of {TRIES}"].append(pd.Series(solved))
        for name, sides in outcomes.items():
            print(f"{rate}, {name}: {100 * smallest_seen(*sides):.1f} points are seen with {POWER:.0%} probability")


if __name__ == "__main__":
    typer.run(main)
