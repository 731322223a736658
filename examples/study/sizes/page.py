"""The size study's page and its figure: python examples/study/sizes/page.py [RESULTS]"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "boundary")]
import plan  # noqa: E402
import report  # noqa: E402

from cw_plugin.lab import intervals  # noqa: E402
from cw_plugin.lab.reports import figures  # noqa: E402

SMALL = 2.0  # points per tenfold increase in parameters; a change within is not worth knowing
LEARNED = 1.0  # point that GRPO gains at least where CW-GRPO can lose something
OUTCOMES = {  # column of the pairs -> what it is; the first is the primary outcome
    "accuracy": "accuracy, CW-GRPO minus GRPO, points",
    "reward": "reward, CW-GRPO minus GRPO, hundredths",
    "extreme_gradient_share": "gradient share of extreme tokens, %",
    "extreme_balance": "balance of extreme tokens, %",
    "grad_norm": "gradient norm, CW-GRPO / GRPO, %",
}
DRAWN = ["accuracy", "extreme_gradient_share", "extreme_balance", "grad_norm"]
KEY = ["width", "lr", "seed"]


def pairs(steps: pd.DataFrame) -> pd.DataFrame:
    """A row for each width, learning rate and seed of which both runs are there. Outcomes are times 100."""
    key = [*KEY, "method"]
    steps = steps.astype(dict.fromkeys(["lr", "reward", *DRAWN], float))
    early = steps[steps.step.between(1, report.EARLY_STEPS)].groupby(key)[DRAWN[1:]].mean()
    runs = 100 * report.outcomes(steps, "width", "lr").set_index(key)[["start", "accuracy", "reward"]].join(early)
    grpo, ours = (runs.xs(method, level="method") for method in plan.METHODS)
    found = ours.assign(
        accuracy=ours.accuracy - grpo.accuracy,
        reward=ours.reward - grpo.reward,
        grad_norm=100 * ours.grad_norm / grpo.grad_norm,
        **{"GRPO": grpo.accuracy, "CW-GRPO": ours.accuracy},
    )
    found = found.dropna(subset="accuracy").sort_index().reset_index()
    return found.assign(size=np.log10(plan.parameters(found.width)))


def slope(line: pd.DataFrame, outcome: str = "accuracy") -> tuple[float, float, float]:
    """The slope per tenfold increase in parameters, half its 95% interval, and p. nan for one size."""
    if line.width.nunique() < 2 or len(line) < 3:
        return (np.nan,) * 3
    found = stats.linregress(line["size"], line[outcome])
    return found.slope, found.stderr * stats.t.ppf(0.975, len(line) - 2), found.pvalue


def reading(line: pd.DataFrame) -> str:
    change, half, _ = slope(line)
    if abs(change) > half:
        return f"With size, the difference moves in favour of {'CW-GRPO' if change > 0 else 'GRPO'}."
    if abs(change) + half < SMALL:
        return f"The difference moves by less than {SMALL:g} points per tenfold increase in parameters."
    return f"No answer: the interval of the slope holds 0, and also a change of {SMALL:g} points."


def answer(line: pd.DataFrame) -> str:
    """What the primary outcome says, as README.md fixed it."""
    if line.width.value_counts().reindex(plan.WIDTHS, fill_value=0).min() < len(plan.FIRST_SEEDS):
        return "Unfinished: there is no answer before each size up to 13 million has three pairs."
    learned = line.groupby("width").filter(lambda of: (of.GRPO - of.start).mean() >= LEARNED)
    if reading(learned) != reading(line):
        return f"No answer: without the sizes at which GRPO gains less than {LEARNED:g} point it would be another."
    return reading(line)


def sizes(every: pd.DataFrame) -> list[dict]:
    """A row for each size and learning rate."""
    rows, labels = [], {"start": "start, %", "GRPO": "GRPO, %", "CW-GRPO": "CW-GRPO, %", **OUTCOMES}
    for (width, rate), of in every.groupby(["width", "lr"]):
        size = f"{plan.parameters(width) / 1e6:.1f}"
        row = {"parameters, million": size, "learning rate": f"{rate:g}", "pairs": len(of)}
        rows.append(row | {label: report.shown(of[name]) for name, label in labels.items()})
    return rows


def slopes(line: pd.DataFrame, one_rate: pd.DataFrame) -> list[dict]:
    found = {label: slope(line, outcome) for outcome, label in OUTCOMES.items()}
    first, *secondary = [*found, "accuracy, at one learning rate"]
    found[secondary[-1]] = slope(one_rate)
    p = {first: found[first][2]} | intervals.holm({label: found[label][2] for label in secondary}, len(secondary))
    rows = []
    for label, (change, half, _) in found.items():
        shown = report.spoken(change, half, 1) if change == change else None
        rows.append({"slope": label, "per tenfold increase in parameters": shown, "p": report.spoken_p(p.get(label))})
    return rows


def draw(line: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(11, 3), layout="constrained")
    for axes, outcome in zip(figure.subplots(1, len(DRAWN)), DRAWN, strict=True):
        axes.set(xscale="log", xlabel="parameters")
        axes.set_title(OUTCOMES[outcome], fontsize=8)
        axes.scatter(10 ** line["size"], line[outcome], s=8, color=figures.FAINT)
        for size, values in line.groupby("size")[outcome]:
            mean, _, high = intervals.mean_over_seeds(values)
            axes.errorbar(10**size, mean, high - mean, fmt="o", capsize=3, color=figures.style(0)["color"])
    return figure


def main(folder: report.Results = HERE / "results") -> None:
    """Write README.md and its figure, beside metrics.parquet, from the runs that it has."""
    steps = pd.read_parquet(folder / "metrics.parquet")
    every, planned = pairs(steps), len(plan.SIZES + plan.LARGEST)
    if every.empty:
        sys.exit(f"{folder}/metrics.parquet has no run of both methods with the same seed yet")
    by_rule = every.width.map(lambda width: float(plan.of_width(width).lr))
    line, one_rate = every[every.lr == by_rule], every[every.lr == float(plan.CENTRE.lr)]
    head = f"{len(steps.drop_duplicates([*KEY, 'method']))} of {planned} runs are done. {answer(line)}"
    note = "Intervals are 95% intervals over seeds. p of the secondary outcomes is corrected for 5 tests (Holm)."
    tables = [report.table("By size", sizes(every)), report.table("Slopes", slopes(line, one_rate), note)]
    report.write(folder, HERE, "size study", "sizes/page.py", head, tables, {"sizes": draw(line)})


if __name__ == "__main__":
    typer.run(main)
