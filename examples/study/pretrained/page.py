"""The page of the pretrained model's study, from the runs that are there: python examples/study/pretrained/page.py"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "boundary"), str(HERE.parent / "entropy"), str(HERE)]
import arithmetic  # noqa: E402
import report  # noqa: E402
import stages  # noqa: E402
from curves import where_reached  # noqa: E402

from cw_plugin.lab import intervals  # noqa: E402
from cw_plugin.lab.reports import figures  # noqa: E402

LATE = stages.STEPS // 2  # the step after which entropy is compared
SMOOTH = 5  # steps of a moving mean of entropy
TRIES = (1, 4, 16, 64)  # the k of pass@k
SOLVED = (stages.TRIES // 8, stages.TRIES // 2)  # right answers of a solved problem, which guessing does not reach
KEY = ["method", "lr", "seed"]
# What CW-GRPO less GRPO is tested for, at the high rate: outcome -> unit and scale
TESTED = {
    "late entropy": ("nats", 1, 2),
    "pass@1": ("points", 100, 1),
    "pass@64": ("points", 100, 1),
    "pass@64 at equal pass@1": ("points", 100, 1),
}
REMEDIES = [  # compared with CW-GRPO at the high rate: method and learning rate
    ("grpo", stages.MIDDLE),
    ("entropy_bonus", stages.HIGH),
    ("positive", stages.HIGH),
    ("negative", stages.HIGH),
    ("grpo_twice", stages.HIGH),
    ("clip_higher", stages.HIGH),
]


def read(folder: Path) -> pd.DataFrame:
    """A row for each step of each run that is done."""
    found = []
    for run in stages.RUNS:
        file = folder / f"{run.name}.parquet"
        if file.exists():
            found.append(pd.read_parquet(file).assign(method=run.method, lr=run.lr, seed=run.seed))
    if not found:
        sys.exit(f"{folder} has no run yet; train.py makes them")
    steps = pd.concat(found, ignore_index=True)
    measured = [f"pass@{k}" for k in TRIES]
    start = steps.loc[(steps.step == 0) & steps["pass@1"].notna(), measured]
    if start.empty:
        sys.exit(f"{folder} lacks {stages.RUNS[0].name}.parquet, whose first validation is that of all runs")
    steps.loc[steps.step == 0, measured] = start.to_numpy()[0]
    return steps


def validations(run: pd.DataFrame) -> pd.DataFrame:
    """pass@k of one run; steps in the index."""
    return run.set_index("step")[[f"pass@{k}" for k in TRIES]].dropna().astype(float)


def solved(run: pd.DataFrame, least: int) -> pd.Series:
    """The share of problems with at least ``least`` right answers, at each validation of a run; steps in the index."""
    return run.set_index("step").right.dropna().map(lambda right: float(np.mean(right >= least)))


def without_guesses(runs: pd.DataFrame) -> dict[str, pd.Series]:
    """Outcomes of the runs of one method at one rate, by seed, most of which guessing does not reach."""
    found = {}
    for seed, run in runs.groupby("seed"):
        tried = validations(run)[1:]
        row = {"pass@1, end": tried["pass@1"].iloc[-1], "pass@1, all validations": tried["pass@1"].mean()}
        row |= {f"solved by {least} of {stages.TRIES}, end": solved(run, least).iloc[-1] for least in SOLVED}
        found[seed] = row | {f"pass@{stages.TRIES}, end": tried[f"pass@{stages.TRIES}"].iloc[-1]}
    return dict(pd.DataFrame.from_dict(found, orient="index").items())


def guess_free_ends(steps: pd.DataFrame) -> report.Table:
    held_out, trained_on = arithmetic.split_of_problems()
    start = steps[steps.step == 0].dropna(subset="right")
    rows: list[dict[str, object]] = []
    for name, shares in {
        "guessing": [arithmetic.guessed_apart(held_out, trained_on, least, stages.TRIES) for least in (1, *SOLVED)],
        "before training": [solved(start, least).iloc[0] for least in (1, *SOLVED)],
    }.items():
        cells = [f"{100 * share:.1f}" for share in shares]
        rows.append(
            {"": name, "learning rate": None, "pass@1, end": None}
            | dict(zip([f"pass@{stages.TRIES}, end", *solved_names()], cells, strict=True))
        )
    for (method, lr), runs in steps.groupby(["method", "lr"], sort=False):
        row: dict[str, object] = {"": stages.METHODS[method], "learning rate": lr}
        rows.append(row | {name: report.shown(of, 100, 1) for name, of in without_guesses(runs).items()})
    note = (
        f"Per cent. pass@{stages.TRIES} is the share solved by at least 1 of {stages.TRIES} answers. Guessing draws "
        "from the right answers of the training problems, sums apart from differences. Intervals are 95% intervals "
        "over seeds."
    )
    return report.table("What guessing reaches, and what it does not", rows, note)


def solved_names() -> list[str]:
    return [f"solved by {least} of {stages.TRIES}, end" for least in SOLVED]


def spoken(difference: intervals.Difference) -> str:
    half = 100 * (difference.high - difference.value)
    return f"{report.spoken(100 * difference.value, half, 1, '+')} (p {report.spoken_p(difference.p)})"


def by_welch(steps: pd.DataFrame) -> report.Table:
    """What seeds that are not paired show at each rate, in measures that guessing does not reach."""
    rows = []
    for lr in (stages.HIGH, stages.MIDDLE, stages.LOW):
        ours, theirs = (without_guesses(of_method(steps, method, lr)) for method in ("cw_grpo", "grpo"))
        row: dict[str, object] = {"": "CW-GRPO less GRPO", "learning rate": lr}
        rows.append(row | {f"{name}, points": spoken(intervals.welch(ours[name], theirs[name])) for name in ours})
    note = (
        f"By Welch's test, over seeds that are not paired: at {stages.HIGH}, the pass@1 of two methods has a "
        f"correlation over seeds of {mean_correlation(steps):.2f} on average. Decided after the runs; p is not "
        "corrected."
    )
    return report.table("CW-GRPO less GRPO, without pairs and without guesses", rows, note)


def mean_correlation(steps: pd.DataFrame) -> float:
    """The mean over pairs of methods at the high rate of the correlation over seeds of their pass@1 at the end."""
    ends_at = outcomes(steps[steps.lr == stages.HIGH]).pivot(index="seed", columns="method", values="pass@1")
    pairs = np.triu_indices(len(ends_at.columns), 1)
    return float(ends_at.corr().to_numpy()[pairs].mean())


def remedies_by_welch(steps: pd.DataFrame) -> report.Table:
    ours = without_guesses(of_method(steps, "cw_grpo", stages.HIGH))
    names = ["pass@1, end", *solved_names(), f"pass@{stages.TRIES}, end"]
    found = {}
    for method, lr in REMEDIES:
        theirs = without_guesses(of_method(steps, method, lr))
        for name in names:
            found[method, lr, name] = intervals.welch(ours[name], theirs[name])
    number = len(REMEDIES) * len(("pass@1", "pass@64", "pass@64 at equal pass@1"))  # as many tests as the plan has
    planned = {key: found[key].p for key in found if key[2] not in solved_names()}
    p = intervals.holm(planned, number)
    rows = []
    for method, lr in REMEDIES:
        row: dict[str, object] = {"": f"{stages.METHODS[method]}, {lr}"}
        for name in names:
            difference = found[method, lr, name]
            row[f"{name}, points"] = spoken(difference._replace(p=p.get((method, lr, name), difference.p)))
        rows.append(row)
    note = (
        "By Welch's test. For pass@1 and pass@64, p is corrected for the plan's 18 tests (Holm). The plan does not "
        "have the shares solved, so their p is not corrected."
    )
    return report.table(f"CW-GRPO at {stages.HIGH} less each remedy, without pairs", rows, note)


def outcomes(steps: pd.DataFrame) -> pd.DataFrame:
    """A row for each run: where it ends, and what its entropy does in its second half."""
    rows = []
    for key, run in steps.groupby(KEY, sort=False):
        entropy = run.set_index("step").entropy.astype(float)
        late, smooth = entropy[LATE + 1 :], entropy.rolling(SMOOTH).mean()[LATE:]
        row = dict(zip(KEY, key, strict=True)) | validations(run).iloc[-1].to_dict()
        row |= {"late entropy": late.mean(), "lowest": smooth.min(), "highest": smooth.max(), "last": smooth.iloc[-1]}
        row |= {"reward": run.reward.astype(float).tail(10).mean()}
        rows.append(row)
    return pd.DataFrame(rows)


def of_method(table: pd.DataFrame, method: str, lr: str) -> pd.DataFrame:
    return table[(table.method == method) & (table.lr == lr)]


def at_equal_pass_1(ours: pd.DataFrame, theirs: pd.DataFrame) -> float:
    """pass@64 of one run less that of another, where both first have the highest pass@1 that both reach."""
    pair = [validations(run) for run in (ours, theirs)]
    level = min(curve["pass@1"].max() for curve in pair)
    first, second = (where_reached(curve, level)["pass@64"] for curve in pair)
    return float(first - second)


def less(steps: pd.DataFrame, ours: tuple[str, str], theirs: tuple[str, str], outcome: str) -> pd.Series:
    """The difference of two methods in an outcome, by seed; each is a method and a learning rate."""
    runs = [of_method(steps, *which) for which in (ours, theirs)]
    seeds = sorted(set(runs[0].seed) & set(runs[1].seed))
    if not seeds:
        return pd.Series(dtype=float)
    if outcome == "pass@64 at equal pass@1":
        pairs = [[of[of.seed == seed] for of in runs] for seed in seeds]
        return pd.Series([at_equal_pass_1(*pair) for pair in pairs], index=seeds, dtype=float)
    ends = [outcomes(of).set_index("seed")[outcome] for of in runs]
    return (ends[0] - ends[1])[seeds].astype(float)


def with_unit(outcome: str) -> str:
    return f"{outcome}, {TESTED[outcome][0]}"


def shown_difference(outcome: str, values: pd.Series) -> str | None:
    _, scale, digits = TESTED[outcome]
    return report.shown(values, scale, digits, "+") if len(values) else None


def tested(title: str, differences: dict[str, dict[str, pd.Series]], note: str) -> report.Table:
    """Rows of differences by outcome, with p corrected over the whole table."""
    p = {}
    for name, of_outcome in differences.items():
        for outcome, values in of_outcome.items():
            if len(values) > 1 and values.std() > 1e-9:
                p[name, outcome] = float(stats.ttest_1samp(values, 0).pvalue)
    p = intervals.holm(p, sum(map(len, differences.values())))
    rows = []
    for name, of_outcome in differences.items():
        row: dict[str, object] = {"": name, "pairs": len(next(iter(of_outcome.values())))}
        for outcome, values in of_outcome.items():
            shown = shown_difference(outcome, values)
            corrected = report.spoken_p(p.get((name, outcome)))
            row[with_unit(outcome)] = f"{shown} (p {corrected})" if corrected else shown
        rows.append(row)
    return report.table(title, rows, note)


def comparison(steps: pd.DataFrame) -> report.Table:
    """Questions (a) and (b) at the high rate."""
    both = ("cw_grpo", stages.HIGH), ("grpo", stages.HIGH)
    differences = {outcome: less(steps, *both, outcome) for outcome in TESTED}
    return tested(
        f"CW-GRPO less GRPO at {stages.HIGH}",
        {"CW-GRPO less GRPO": differences},
        f"Paired by seed. p is corrected for {len(TESTED)} tests (Holm).",
    )


def at_other_rates(steps: pd.DataFrame) -> report.Table:
    """Questions (a) and (b) where the plan tests nothing."""
    rows = []
    for lr in (stages.MIDDLE, stages.LOW):
        differences = {outcome: less(steps, ("cw_grpo", lr), ("grpo", lr), outcome) for outcome in TESTED}
        row: dict[str, object] = {"": "CW-GRPO less GRPO", "learning rate": lr, "pairs": len(differences["pass@1"])}
        rows.append(row | {with_unit(outcome): shown_difference(outcome, of) for outcome, of in differences.items()})
    return report.table("CW-GRPO less GRPO at the other rates", rows, "Paired by seed. This is described, not tested.")


def remedies(steps: pd.DataFrame) -> report.Table:
    """Question (c)."""
    outcomes_of = ("pass@1", "pass@64", "pass@64 at equal pass@1")
    differences = {}
    for method, lr in REMEDIES:
        name = f"{stages.METHODS[method]}, {lr}"
        differences[name] = {of: less(steps, ("cw_grpo", stages.HIGH), (method, lr), of) for of in outcomes_of}
    number = len(REMEDIES) * len(outcomes_of)
    note = f"Paired by seed. p is corrected for {number} tests (Holm)."
    return tested(f"CW-GRPO at {stages.HIGH} less each remedy", differences, note)


def ends(steps: pd.DataFrame) -> report.Table:
    rows = []
    for (method, lr), runs in outcomes(steps).groupby(["method", "lr"], sort=False):
        row: dict[str, object] = {"": stages.METHODS[method], "learning rate": lr, "seeds": len(runs)}
        row |= {f"pass@{k}, %": report.shown(runs[f"pass@{k}"], 100, 1) for k in TRIES}
        row["late entropy, nats"] = report.shown(runs["late entropy"], 1, 2)
        row[f"last {SMOOTH} steps"] = report.shown(runs["last"], 1, 2)
        row["band of entropy"] = f"{runs.lowest.min():.2f} to {runs.highest.max():.2f}"
        rows.append(row)
    start = validations(steps[steps.step == 0]) * 100
    note = "Before training: " + ", ".join(f"{name} {start[name].mean():.1f}%" for name in start) + "."
    note += f" Entropy of the first step: {steps[steps.step == 1].entropy.astype(float).mean():.2f} nats."
    late = (
        f"Late entropy is the mean after step {LATE}. Its band holds the means of {SMOOTH} steps, of all seeds, from "
        f"step {LATE} on. Intervals are 95% intervals over seeds."
    )
    return report.table("Where each method ends", rows, late, note)


def late_entropy_by_seed(steps: pd.DataFrame) -> report.Table:
    """Does the entropy of each run rise late? A mean over seeds does not say it."""
    rows = []
    for method in ("grpo", "cw_grpo", "state"):
        for seed, run in of_method(steps, method, stages.HIGH).groupby("seed"):
            entropy = run.set_index("step").entropy.astype(float)
            tens = {
                f"steps {first + 1} to {first + 10}": entropy.loc[first + 1 : first + 10].mean()
                for first in (30, 40, 50)
            }
            rows.append(
                {"": stages.METHODS[method], "seed": seed} | {name: f"{mean:.2f}" for name, mean in tens.items()}
            )
    return report.table(f"Entropy of each run late at {stages.HIGH}, nats", rows)


def along(steps: pd.DataFrame) -> report.Table:
    rows = []
    for (method, lr), runs in steps.groupby(["method", "lr"], sort=False):
        mean = pd.concat([validations(run) for _, run in runs.groupby("seed")]).groupby(level=0).mean() * 100
        shown = mean.map("{:.1f}".format).agg(" / ".join, axis=1)
        row = {"": stages.METHODS[method], "learning rate": lr}
        rows.append(row | shown.rename("step {:.0f}".format).to_dict())
    return report.table(f"{' / '.join(f'pass@{k}' for k in TRIES)} along training, %, means over seeds", rows)


def law(steps: pd.DataFrame) -> report.Table:
    """Does the change of entropy follow the covariance, as Cui et al. (arXiv:2505.22617) say?"""
    rows = []
    for (method, lr), runs in steps.groupby(["method", "lr"], sort=False):
        of_runs = [run.set_index("step") for _, run in runs.groupby("seed")]
        row: dict[str, object] = {"": stages.METHODS[method], "learning rate": lr}
        for name, label in LAW.items():
            row[label] = report.shown(pd.Series([correlation_with_change(run, name) for run in of_runs]), 1, 2, "+")
        for name, label in DIRECTIONS.items():
            row[label] = report.shown(pd.Series([run[name].astype(float).mean() for run in of_runs]), 1, 3, "+")
        rows.append(row)
    note = (
        f"Correlations are those of the change of a run's entropy over {SMOOTH} steps with the mean of these steps. "
        f"The change of Adam's update is measured in every {stages.RECORDED_EVERY}th step, and interpolated. Cosines "
        "are those with the gradient of the batch's entropy, over the recorded steps. All are means over seeds."
    )
    return report.table("What entropy follows", rows, note)


def correlation_with_change(run: pd.DataFrame, name: str) -> float:
    """The correlation of a column's mean over some steps with the change of entropy from the first of them to the next.

    Steps are in the index. A step's entropy is measured before its update.
    """
    change = run.entropy.astype(float).diff(SMOOTH)
    values = run[name].astype(float).interpolate(limit_area="inside")
    both = pd.concat([change, values.rolling(SMOOTH).mean().shift(1)], axis=1).dropna()
    return float(np.corrcoef(both.T)[0, 1])


LAW = {
    "covariance_before": "correlation with the covariance of GRPO's advantages",
    "covariance_after": "with the covariance of the weighted advantages",
    "entropy_change": "with the first-order change of Adam's update",
}
DIRECTIONS = {
    "entropy_along_gradient": "cosine of plain gradient descent",
    "entropy_along_update": "cosine of Adam's update",
}


def tokens_of(folder: Path) -> pd.DataFrame:
    """A row for each recorded token of each run that is done."""
    found = []
    for run in stages.RUNS:
        file = folder / f"{run.name}-tokens.parquet"
        if file.exists() and (folder / f"{run.name}.parquet").exists():
            found.append(pd.read_parquet(file).assign(method=run.method, lr=run.lr, seed=run.seed))
    return pd.concat(found, ignore_index=True)


def covariances(tokens: pd.DataFrame) -> report.Table:
    """Two covariances, before and after the weights: the paper's over the group, and that within a state."""
    by_group = tokens.groupby([*KEY, "step", "group"], sort=False)
    tokens = tokens.assign(
        surprise=tokens.log_prob + tokens.entropy,
        centred=tokens.log_prob - by_group.log_prob.transform("mean"),
    )
    for name in ("advantage", "weighted_advantage"):
        tokens[name] -= by_group[name].transform("mean")
    products = tokens[KEY].copy()
    for left, label in {"centred": "over the group", "surprise": "within a state"}.items():
        for right, when in {"advantage": "before", "weighted_advantage": "after the weights"}.items():
            products[f"{label}, {when}"] = tokens[left] * tokens[right]
    steps = pd.cut(tokens.step, [1, LATE, stages.STEPS], labels=[f"2 to {LATE}", f"{LATE + 1} to {stages.STEPS}"])
    of_runs = products.groupby([*KEY, steps], sort=False, observed=True).mean().reset_index("seed", drop=True)
    rows = []
    for (method, lr, part), runs in of_runs.groupby(["method", "lr", "step"], sort=False, observed=True):
        row: dict[str, object] = {"": stages.METHODS[method], "learning rate": lr, "steps": part}
        rows.append(row | {label: report.shown(runs[label], 1, 3, "+") for label in runs})
    note = (
        "Over the group: (log π - mean log π) · (A - mean A), the paper's. Within a state: (log π + H) · (A - mean A), "
        "where H is the entropy at the token's position. Both are a run's means over recorded tokens, and then means "
        "over seeds."
    )
    return report.table("The sign of two covariances", rows, note)


def carriers(tokens: pd.DataFrame) -> report.Table:
    """Which answers carry the change of entropy: those with a positive, a negative, or no advantage."""
    third = stages.STEPS // 3
    before, after = f"{third + 1} to {2 * third}", f"{2 * third + 1} to {stages.STEPS}"
    tokens = tokens.assign(
        steps=pd.cut(tokens.step, [third, 2 * third, stages.STEPS], labels=[before, after]),
        answers=np.sign(tokens.advantage).map({1: "right", -1: "wrong", 0: "all right or all wrong"}),
    )
    of_run = tokens.groupby([*KEY, "answers", "steps"], sort=False, observed=True).entropy
    sums, sizes = (of.unstack("steps", fill_value=0) for of in (of_run.sum(), of_run.size()))
    of_all = sizes.groupby(KEY, sort=False).transform("sum")
    share, carried = sizes / of_all, sums / of_all
    mean = sums / sizes.where(sizes > 0)
    rows = []
    for (method, lr, answers), runs in sizes.groupby(["method", "lr", "answers"], sort=False).groups.items():
        row: dict[str, object] = {"": stages.METHODS[method], "learning rate": lr, "answers": answers}
        row["of the tokens, %"] = f"{100 * share.loc[runs, after].mean():.0f}"
        for part in (before, after):
            row[f"entropy, steps {part}"] = report.shown(mean.loc[runs, part].dropna(), 1, 2)
        row["part of the change"] = report.shown(carried.loc[runs, after] - carried.loc[runs, before], 1, 2, "+")
        rows.append(row)
    note = (
        f"Right and wrong: answers of a group that has both. Shares are those of steps {after}. The parts of a method "
        "add up to the change of its mean entropy between the two. All are means over recorded tokens, then over seeds."
    )
    return report.table("Which answers carry the change of entropy, nats", rows, note)


def runs_table(steps: pd.DataFrame) -> report.Table:
    rows = []
    for (hardware, commit), of in steps.groupby(["hardware", "commit"], sort=False):
        hours = of.cpu_seconds.sum() / 3600
        runs = len(of.drop_duplicates(KEY))
        rows.append({"hardware": hardware, "commit": commit, "runs": runs, "core hours": f"{hours:.1f}"})
    return report.table("Hardware and commit of the runs", rows)


def drawn_entropy(steps: pd.DataFrame) -> Figure:
    series = {}
    for method in ("grpo", "cw_grpo"):
        runs = of_method(steps, method, stages.HIGH).groupby("seed")
        series[stages.METHODS[method]] = [run.set_index("step").entropy.astype(float).dropna() for _, run in runs]
    return figures.curves(series, f"Policy entropy at {stages.HIGH}", "nats", SMOOTH, size=(5.2, 3.8))


def drawn_pass_k(steps: pd.DataFrame) -> Figure:
    """Each run's pass@64 against its pass@1, and the mean over seeds at each validation, with its step."""
    figure, axes = figures.new(f"pass@64 and pass@1 at steps 0 to {stages.STEPS}", "pass@1", "pass@64", (5.2, 3.8))
    lines = {}
    for place, method in enumerate(("grpo", "cw_grpo")):
        runs = of_method(steps, method, stages.HIGH)
        curves = pd.concat([validations(run) for _, run in runs.groupby("seed")])
        mean, look = curves.groupby(level=0).mean(), figures.style(place)
        axes.scatter(curves["pass@1"], curves["pass@64"], s=6, color=look["color"], alpha=0.4)
        (lines[stages.METHODS[method]],) = axes.plot(mean["pass@1"], mean["pass@64"], **look)
        for step, point in mean.iterrows():
            place_of_label = (point["pass@1"], point["pass@64"])
            axes.annotate(f"{step:.0f}", place_of_label, (3, 3), textcoords="offset points", color=look["color"])
    figures.legend(figure, lines)
    return figure


def main(folder: report.Results = HERE / "results") -> None:
    """Write README.md and its figures from the runs of a folder."""
    steps, tokens = read(folder), tokens_of(folder)
    head = f"{len(steps.drop_duplicates(KEY))} of {len(stages.RUNS)} runs are done."
    tables = [
        guess_free_ends(steps),
        by_welch(steps),
        comparison(steps),
        at_other_rates(steps),
        ends(steps),
        along(steps),
        late_entropy_by_seed(steps),
        remedies(steps),
        remedies_by_welch(steps),
        law(steps),
        covariances(tokens),
        carriers(tokens),
        runs_table(steps),
    ]
    drawn = {"entropy": drawn_entropy(steps), "pass_k": drawn_pass_k(steps)}
    report.write(folder, HERE, "study of a pretrained model", "pretrained/page.py", head, tables, drawn)


if __name__ == "__main__":
    typer.run(main)
