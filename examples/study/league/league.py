"""The league of weightings: each at its own best learning rate, compared with GRPO at its own.

    bash examples/study/run.sh league               # the runs that league/results lacks, then its page
    bash examples/study/run.sh league mine:focal    # the row of a weighting of your own, in a quarter of an hour

A run is one of the boundary study's: 100 steps of TRL with the model of 0.8 million parameters. Five seeds at each of
three learning rates choose the rate of a weighting, and twenty other seeds are compared.
"""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import typer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "boundary")]
import report  # noqa: E402
from markdown_tables import markdown  # noqa: E402
from plan import LeagueRun  # noqa: E402
from study import append, run_all  # noqa: E402

from cw_plugin.lab import intervals  # noqa: E402
from cw_plugin.lab.reports.table_formats import Table  # noqa: E402
from cw_plugin.registry import BUILT_IN  # noqa: E402

RATES = ("1e-5", "3e-5", "1e-4")
CHOICE_SEEDS = range(1, 6)
SEEDS = range(101, 121)
DIFFERENT = 0.01  # a weighting with a smaller p, after Holm's correction, is called different from GRPO
LAST = 25  # steps that reward and entropy are means of
KEY = ["weights", "lr", "seed"]
PLAIN = "none"  # GRPO


def file(folder: Path) -> Path:
    return folder / "runs.parquet"


def read(folder: Path) -> pd.DataFrame:
    """A row for each run: weights, lr, seed, accuracy at the end, reward, entropy in nats, and seconds."""
    return pd.read_parquet(file(folder)) if file(folder).exists() else pd.DataFrame(columns=[*KEY, "accuracy"])


def make_missing(pool: Executor, runs: Sequence[LeagueRun], folder: Path) -> None:
    """Do those of the runs that the folder lacks."""
    # Here, because it imports TRL, without which the page can be written.
    from train import train

    done = set(read(folder)[KEY].itertuples(index=False, name=None))
    waiting = [run for run in runs if (run.weighting, run.lr, run.seed) not in done]
    print(f"{len(runs) - len(waiting)} runs are done, {len(waiting)} are not", flush=True)
    run_all(pool, train, waiting, partial(add, folder))


def add(folder: Path, run: LeagueRun, steps: list[dict[str, Any]]) -> None:
    late = pd.DataFrame(steps).tail(LAST)
    row = {"weights": run.weighting, "lr": run.lr, "seed": run.seed, "accuracy": steps[-1]["accuracy"]}
    row |= {name: late[name].mean() for name in ("reward", "entropy")} | {"seconds": steps[-1]["seconds"]}
    append(file(folder), pd.DataFrame([row]))


def best_rate(runs: pd.DataFrame, name: str) -> str:
    """The rate with the highest mean accuracy over the seeds that choose it."""
    choosing = runs[(runs.weights == name) & runs.seed.isin(CHOICE_SEEDS)]
    return str(choosing.groupby("lr").accuracy.mean().idxmax())


def compared(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """The runs of a weighting at its own rate that are compared."""
    chosen = (runs.weights == name) & runs.seed.isin(SEEDS) & (runs.lr == best_rate(runs, name))
    return runs[chosen].set_index("seed")


def is_complete(runs: pd.DataFrame, name: str) -> bool:
    """Whether all runs of a weighting that are compared are there."""
    return name in set(runs.weights) and len(compared(runs, name)) == len(SEEDS)


def league(runs: pd.DataFrame, names: Sequence[str]) -> Table:
    """A row for each weighting, the highest accuracy first."""
    of_name = {name: compared(runs, name) for name in names if is_complete(runs, name)}
    plain = of_name[PLAIN].accuracy
    less = {name: intervals.welch(of.accuracy, plain) for name, of in of_name.items() if name != PLAIN}
    p = intervals.holm({name: difference.p for name, difference in less.items()})
    rows = []
    for name, of in sorted(of_name.items(), key=lambda item: -item[1].accuracy.mean()):
        row: dict[str, object] = {"weights": name, "its rate": of.lr.iloc[0]}
        row["accuracy, %"] = report.shown(of.accuracy, 100, 1)
        row["entropy, nats"] = report.shown(of.entropy, 1, 3)
        if name in less:
            value, _, high, _ = less[name]
            row["less GRPO, points"] = report.spoken(100 * value, 100 * (high - value), 1, "+")
            row["p"] = report.spoken_p(p[name])
            row["different"] = "yes" if p[name] < DIFFERENT else "no"
        rows.append(row)
    note = (
        f"Means and 95% intervals over {len(SEEDS)} seeds after 100 steps. Each weighting has the best of the rates "
        f"{', '.join(RATES)}, which {len(CHOICE_SEEDS)} other seeds chose. p is Welch's, corrected for {len(less)} "
        f"tests (Holm). Below {DIFFERENT}, a weighting is called different from GRPO, which is {PLAIN!r}."
    )
    return report.table("The league", rows, note)


def main(own: str = typer.Argument("", metavar="[MODULE:FUNCTION]")) -> None:
    """Make the missing runs, and write the page; with a weighting of your own, make its runs, and print its row."""
    from train import processes

    folder = Path(os.environ["RESULTS"]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    names = [own] if own else list(BUILT_IN)
    if own and not is_complete(read(HERE / "results"), PLAIN):
        names = [PLAIN, own]  # so that there is something to compare with
    with processes() as pool:
        # Seed by seed, so that an interruption leaves all weightings equally far.
        choosing = [
            LeagueRun(weighting=name, lr=lr, seed=seed) for seed in CHOICE_SEEDS for name in names for lr in RATES
        ]
        make_missing(pool, choosing, folder)
        rate = {name: best_rate(read(folder), name) for name in names}
        comparing = [LeagueRun(weighting=name, lr=rate[name], seed=seed) for seed in SEEDS for name in names]
        make_missing(pool, comparing, folder)
    if own:
        runs = pd.concat([read(HERE / "results"), read(folder)]).drop_duplicates(KEY)
        print(markdown(league(runs, [*BUILT_IN, own])).replace("&lt;", "<"))  # which a page needs
    else:
        page(folder)


def page(folder: Path) -> None:
    runs = read(folder)
    hours = f"{len(runs)} runs, in {runs.seconds.sum() / 3600:.1f} core hours."
    report.write(folder, HERE, "league of weightings", "league/league.py", hours, [league(runs, list(BUILT_IN))], {})


if __name__ == "__main__":
    if "RESULTS" not in os.environ:
        sys.exit(__doc__)
    typer.run(main)
