"""The entropy study's page and its figures: python examples/study/entropy/curves.py [RESULTS]"""

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import typer
from matplotlib.figure import Figure
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "boundary")]
import phases  # noqa: E402
import plan  # noqa: E402
import report  # noqa: E402
import task  # noqa: E402
from guessing import guessed  # noqa: E402
from phases import ANSWERS, FEWEST, GAIN, METHODS, SMALL  # noqa: E402

from cw_plugin.lab import intervals  # noqa: E402
from cw_plugin.lab.reports import figures  # noqa: E402

TRIES = (1, 4, 16, 64)  # the k of pass@k
EQUAL = {"pass@16": ("pass@16, points", 100, 1), "entropy": ("entropy, nats", 1, 3)}  # what is compared at equal pass@1
ENDS = {f"pass@{k}": (f"pass@{k}, %", 100, 1) for k in TRIES} | {"entropy": ("entropy, nats", 1, 3)}
Runs = dict[str, dict[int, pd.DataFrame]]  # method -> seed -> its steps


def validated(run: pd.DataFrame) -> pd.DataFrame:
    """pass@k and entropy at each validation of a run; steps in the index."""
    rows = run.assign(entropy=run.entropy.bfill()).dropna(subset="accuracy")  # of the first 25 steps, before their end
    curve = rows[["entropy"]].copy()
    for k in TRIES:
        solved = {right: intervals.pass_at_k(ANSWERS, right, k) for right in range(ANSWERS + 1)}
        curve[f"pass@{k}"] = [sum(map(solved.__getitem__, right)) / len(right) for right in rows.right]
    return curve


def guess(k: int) -> float:
    """pass@k of somebody who draws from the right answers of the training problems."""
    problems = task.split_problems()
    held_out, known = ([str(first * second) for first, second in problems[of]] for of in ("test", "train"))
    return guessed(held_out, known, 1, k)


def where_reached(curve: pd.DataFrame, level: float) -> pd.Series:
    """A curve where its pass@1 first reaches ``level``, by a straight line between two validations."""
    place = int((curve["pass@1"] >= level).argmax())
    if place == 0:
        return curve.iloc[0]
    before, after = curve.iloc[place - 1], curve.iloc[place]
    return before + (after - before) * (level - before["pass@1"]) / (after["pass@1"] - before["pass@1"])


def less_at_equal_pass_1(ours: dict[int, pd.DataFrame], theirs: dict[int, pd.DataFrame]) -> pd.DataFrame:
    """By seed, the differences of two methods at the highest pass@1 that both runs reach."""
    pairs = {}
    for seed in sorted(ours.keys() & theirs.keys()):
        pair = [validated(runs[seed]) for runs in (ours, theirs)]
        if all(curve["pass@1"].max() >= curve["pass@1"].iloc[0] + GAIN for curve in pair):
            level = min(curve["pass@1"].max() for curve in pair)
            pairs[seed] = where_reached(pair[0], level) - where_reached(pair[1], level)
    return pd.DataFrame(pairs, index=[*ENDS]).T


def compared(steps: pd.DataFrame, point: plan.Run) -> Runs:
    """The runs of the comparison at a setting, of the methods that have some."""
    here = steps[(steps.seed > 0) & (steps.steps == point.steps)]
    here = here[(here.updates == point.updates) & (here.width == point.width)].set_index("step")
    by_method = {method: here[here.method == method] for method in METHODS}
    return {method: dict(iter(runs.groupby("seed"))) for method, runs in by_method.items() if len(runs)}


def have_collapsed(runs: dict[int, pd.DataFrame]) -> bool:
    """Whether pass@64 of a method's runs ends significantly below its start, or their entropy has mostly collapsed."""
    curves = [validated(run) for run in runs.values()]
    lost = [curve["pass@64"].iloc[-1] - curve["pass@64"].iloc[0] for curve in curves]
    emptied = [curve for curve in curves if curve.entropy.iloc[-1] < phases.LOW * curve.entropy.iloc[0]]
    return intervals.mean_over_seeds(lost).high < 0 or len(emptied) >= FEWEST


def answer(runs: Runs) -> str:
    """What the primary outcome says, as README.md fixed it."""
    less = less_at_equal_pass_1(runs.get("cw_grpo", {}), runs.get("grpo", {}))["pass@16"] * 100
    mean, low, high = intervals.mean_over_seeds(less)
    if len(less) < FEWEST:
        return f"Unfinished: there is no answer before {FEWEST} pairs, and there are {len(less)}."
    if not have_collapsed(runs["grpo"]):
        return "No answer: GRPO has not collapsed in its runs."
    found = f"it is {mean:+.1f} points ({low:+.1f} to {high:+.1f}) for CW-GRPO less GRPO, in {len(less)} pairs."
    if low > 0 or high < 0:
        return f"{'CW-GRPO' if low > 0 else 'GRPO'} keeps more pass@16 at equal pass@1: {found}"
    return f"{'No difference of more than 1 point' if max(-low, high) <= SMALL else 'No answer'}: {found}"


def p_values(every: dict[str, Runs]) -> dict[tuple[str, str, str], float]:
    """Of t-tests: setting, method and outcome -> p, corrected together but for the primary outcome."""
    p, first = {}, (next(iter(every), ""), "cw_grpo", "pass@16")
    for name, runs in every.items():
        for method in METHODS.keys() - {"grpo"}:
            less = less_at_equal_pass_1(runs.get(method, {}), runs.get("grpo", {}))
            if len(less) > 1:
                p |= {(name, method, of): float(stats.ttest_1samp(less[of], 0).pvalue) for of in EQUAL}
    others = {key: value for key, value in p.items() if key != first}
    tests = 3 * (len(METHODS) - 1) * len(EQUAL) - 1
    return intervals.holm(others, tests) | {key: value for key, value in p.items() if key == first}


def setting_table(name: str, runs: Runs, p: dict[tuple[str, str, str], float]) -> report.Table:
    starts = pd.DataFrame([validated(run).iloc[0] for run in runs["grpo"].values()])
    rows = [{"": "the start"} | {label: report.shown(starts[of], *how) for of, (label, *how) in ENDS.items()}]
    for method, by_seed in runs.items():
        ends = pd.DataFrame([validated(run).iloc[-1] for run in by_seed.values()])
        less = less_at_equal_pass_1(by_seed, runs.get("grpo", {}) if method != "grpo" else {})
        row = {"": METHODS[method], "learning rate": next(iter(by_seed.values())).lr.iloc[0], "seeds": len(by_seed)}
        row |= {label: report.shown(ends[of], *how) for of, (label, *how) in ENDS.items()}
        row["collapsed"] = len([run for run in by_seed.values() if phases.collapsed(run)])
        for of, (label, *how) in EQUAL.items():
            if len(less):
                tested = f" (p {report.spoken_p(p.get((name, method, of)))})" if len(less) > 1 else ""
                row[f"at equal pass@1, less GRPO: {label}"] = f"{report.shown(less[of], *how, '+')}{tested}"
        rows.append(row)
    return report.table(
        name,
        rows,
        "At the end; then differences where both have the same pass@1. 95% intervals over seeds.",
        "p is of paired t-tests, corrected together (Holm), but for CW-GRPO's pass@16 at the first setting.",
    )


def rates_table(steps: pd.DataFrame, point: plan.Run, rates: tuple[str, ...]) -> report.Table:
    """What each method ends with at each learning rate that it tried."""
    rows = []
    for method in METHODS:
        row = {"": METHODS[method]}
        for run in phases.tried(point, method, rates):
            if len(done := phases.beginning(steps, run)):
                end = validated(done).iloc[-1] * 100
                row[run.lr] = f"{end['pass@1']:.1f} / {end['pass@16']:.1f}"
        rows.append(row)
    return report.table(f"{described(point)}: pass@1 / pass@16 at the end, by learning rate (one seed)", rows)


def training_table(name: str, runs: Runs) -> report.Table:
    """pass@k of each method at each validation, as means over seeds."""
    rows = []
    for method, by_seed in runs.items():
        mean = pd.concat([validated(run) for run in by_seed.values()]).groupby(level=0).mean() * 100
        shown = mean.map("{:.1f}".format)[[f"pass@{k}" for k in TRIES]].agg(" / ".join, axis=1)
        rows.append({"": METHODS[method]} | shown.rename("step {:.0f}".format).to_dict())
    return report.table(f"{name}: {' / '.join(f'pass@{k}' for k in TRIES)} along training, %", rows)


def search_table(steps: pd.DataFrame) -> report.Table:
    rows = []
    for family, rates in phases.FAMILIES.items():
        for run in phases.tried(family, "grpo", rates):
            if len(begun := phases.beginning(steps, run)):
                curve = validated(begun)
                ends = [step for step in run.validations if step >= phases.EARLIEST]
                fell = [step for step in ends if phases.collapsed(phases.beginning(steps, replace(run, steps=step)))]
                found = {of: f"{scale * curve[of].iloc[0]:.{digits}f} → {scale * curve[of].iloc[-1]:.{digits}f}"
                         for of, (_, scale, digits) in ENDS.items()}  # fmt: skip
                rows.append({"": described(run), "learning rate": run.lr, **found, "collapsed after steps": str(fell)})
    return report.table("The search with GRPO alone: start → end", rows)


def described(run: plan.Run) -> str:
    return f"width {run.width}, {run.updates} updates, {run.steps} steps"


def draw(runs: Runs, what: str = "pass@16") -> Figure:
    """Each method's mean over seeds at each validation, and its seeds as points."""
    figure, axes = figures.new(f"{what} as pass@1 rises", "pass@1", what, (5.2, 3.8))
    lines = {}
    for place, method in enumerate(METHODS):
        curves = pd.concat([validated(run) for run in runs.get(method, {}).values()] or [pd.DataFrame(columns=[*ENDS])])
        mean, look = curves.groupby(level=0).mean(), figures.style(place)
        axes.scatter(curves["pass@1"], curves[what], s=4, color=look["color"], alpha=0.3)
        (lines[METHODS[method]],) = axes.plot(mean["pass@1"], mean[what], **look)
    figures.legend(figure, lines)
    return figure


def main(folder: report.Results = HERE / "results") -> None:
    """Write README.md and its figures, beside metrics.parquet, from the runs that it has."""
    steps = phases.read(folder / "metrics.parquet")
    searched = all(len(phases.beginning(steps, run)) for run in phases.search())
    points = phases.points(steps) if searched else {}
    every = {described(point): runs for point in points if (runs := compared(steps, point))}
    first, drawn = next(iter(every.values()), {}), {}
    if first:
        # Every tenth step is enough for a mean of 25.
        entropy = {METHODS[method]: [run.entropy[::10] for run in runs.values()] for method, runs in first.items()}
        drawn = {"curve": draw(first), "entropy": figures.curves(entropy, "Policy entropy", "nats", size=(5.2, 3.8))}
    p, done = p_values(every), len(steps.drop_duplicates(plan.SETTINGS))
    tables = [setting_table(name, runs, p) for name, runs in every.items()]
    tables += [training_table(name, runs) for name, runs in every.items()]
    tables += [rates_table(steps, point, rates) for point, rates in points.items() if described(point) in every]
    tables.append(search_table(steps))
    head = f"{done} runs are done, in {steps.seconds.sum() / 3600:.1f} core hours. {answer(first)}"
    head += f" Guessing reaches a pass@16 of {guess(16):.1%} and a pass@64 of {guess(64):.1%}."
    report.write(folder, HERE, "entropy study", "entropy/curves.py", head, tables, drawn)


if __name__ == "__main__":
    typer.run(main)
