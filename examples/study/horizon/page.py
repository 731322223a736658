"""The page of the horizon study, from the runs that are there: python examples/study/horizon/page.py"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import typer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "pretrained"), str(HERE.parent / "boundary")]
import arithmetic  # noqa: E402
import horizon  # noqa: E402
import report  # noqa: E402
from stages import METHODS, TRIES, Run  # noqa: E402

from cw_plugin.lab import intervals  # noqa: E402

SOLVED = f"solved by {horizon.SOLVED_FROM} of {TRIES}"
MEASURES = (
    "pass@1",
    SOLVED,
    f"solved by {TRIES // 2} of {TRIES}",
    "pass@1 of sums",
    "pass@1 of differences",
    "pass@64",
)


def done(folder: Path, runs: list[Run]) -> list[Run]:
    return [run for run in runs if (folder / f"{run.name}.parquet").exists()]


def measured(right: np.ndarray) -> dict[str, float]:
    """The measures of one validation, from the right answers to each problem: first sums, then differences."""
    share, half = right / TRIES, len(right) // 2
    values = (
        share.mean(),
        np.mean(right >= horizon.SOLVED_FROM),
        np.mean(right >= TRIES // 2),
        share[:half].mean(),
        share[half:].mean(),
        np.mean(right > 0),
    )
    return dict(zip(MEASURES, map(float, values), strict=True))


def of_run(folder: Path, run: Run) -> pd.DataFrame:
    """The measures at each validation of a run; steps in the index."""
    return pd.DataFrame.from_dict(dict(horizon.validations(folder, run).right.map(measured)), orient="index")


def late(folder: Path, runs: list[Run]) -> pd.DataFrame:
    """A row for each run: the means of its measures over the late validations."""
    return pd.DataFrame([of_run(folder, run).loc[list(horizon.LATE)].mean() for run in runs], columns=MEASURES)


TESTED = ("pass@1", SOLVED)  # by the plan, in the second stage


def compared(title: str, folder: Path, runs: list[Run], tested: Sequence[str]) -> report.Table:
    """The two methods late in training: what is tested, and the other measures, which are described."""
    ours, theirs = (late(folder, [run for run in runs if run.method == method]) for method in ("cw_grpo", "grpo"))
    differences = {name: intervals.welch(ours[name], theirs[name]) for name in MEASURES}
    p = intervals.holm({name: differences[name].p for name in tested})
    rows = []
    for name, (value, _, high, _) in differences.items():
        row: dict[str, object] = {"": name, "GRPO, %": report.shown(theirs[name], 100, 1)}
        row["CW-GRPO, %"] = report.shown(ours[name], 100, 1)
        row["CW-GRPO less GRPO, points"] = report.spoken(100 * value, 100 * (high - value), 1, "+")
        rows.append(row | {"p": report.spoken_p(p.get(name))})
    steps = ", ".join(map(str, horizon.LATE))
    tests = "Welch's tests of the first two, corrected for two (Holm). The rest is described."
    return report.table(title, rows, f"Means over steps {steps}. {tests if tested else 'Described, not tested.'}")


def along(title: str, folder: Path, runs: list[Run]) -> report.Table:
    rows = []
    for method, lr in dict.fromkeys((run.method, run.lr) for run in runs):
        these = [of_run(folder, run) for run in runs if (run.method, run.lr) == (method, lr)]
        mean = pd.concat(these).groupby(level=0)[["pass@1", SOLVED]].mean() * 100
        row: dict[str, object] = {"": METHODS[method], "learning rate": lr, "seeds": len(these)}
        row |= mean.map("{:.1f}".format).agg(" / ".join, axis=1).rename("step {:.0f}".format).to_dict()
        row["collapsed"] = str([horizon.fell(validated["pass@1"]) for validated in these].count(True))
        rows.append(row)
    return report.table(title, rows, f"pass@1 / share {SOLVED}, %, means over seeds. Collapsed: runs.")


def guessing() -> str:
    held_out, trained_on = horizon.held_out_and_trained(arithmetic.problems())
    shares = [arithmetic.guessed_apart(held_out, trained_on, least, TRIES) for least in (1, horizon.SOLVED_FROM)]
    solved = f"{shares[0]:.1%} of the problems by 1 of {TRIES} answers, and {shares[1]:.1%} by {horizon.SOLVED_FROM}"
    return f"Guessing solves {solved}."


def main(folder: report.Results = HERE / "results") -> None:
    """Write README.md from the runs of a folder."""
    stages = {"Rates": horizon.rate_runs()}
    if done(folder, stages["Rates"]) == stages["Rates"]:
        rates = horizon.best_rates(folder)
        stages |= {"Horizon": horizon.horizon_runs(rates), "Collapse": horizon.collapse_runs(rates)}
    ready = {title: done(folder, runs) for title, runs in stages.items()}
    tables = [along(title, folder, runs) for title, runs in ready.items() if runs]
    if "Horizon" in stages and ready["Horizon"] == stages["Horizon"]:
        title = "Late in training, each method at its own rate"
        tables.insert(0, compared(title, folder, stages["Horizon"], TESTED))
    if "Collapse" in stages and ready["Collapse"] == stages["Collapse"]:
        title = "Late in training, at three times GRPO's rate"
        tables.insert(1, compared(title, folder, stages["Collapse"], ()))
    numbers = ", ".join(f"{len(runs)} of {len(stages[title])} of the stage {title}" for title, runs in ready.items())
    report.write(folder, HERE, "horizon study", "horizon/page.py", f"Runs: {numbers}. {guessing()}", tables, {})


if __name__ == "__main__":
    typer.run(main)
