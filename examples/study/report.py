"""The pages of both studies, results/README.md, and their figures, from the parquet files beside them.

python examples/study/report.py                      # the committed ones
python examples/study/report.py study RESULTS        # of a folder of one's own
python examples/study/report.py boundary RESULTS
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "boundary"))
import plan  # noqa: E402
import study  # noqa: E402

from cw_plugin.files import write_whole  # noqa: E402
from cw_plugin.reports import covariance, figures, intervals  # noqa: E402
from cw_plugin.reports.formats import Table  # noqa: E402

NAMES, SHORT = study.NAMES, plan.NAMES
# Single batches differ more than methods do, so that metrics of steps are averaged over this many.
WINDOW = 25
FALL = 0.10  # accuracy below the run's best from which on a run has collapsed
LOW, SURGE = 0.1, 2.0  # times the entropy of the first steps: below the one it has collapsed, above the other surged
CLIP_GRAD = 1.0  # train.sh and plan.py
EARLY, EARLY_STEPS, RESAMPLES = ("extreme_gradient_share", "extreme_balance"), 20, 1999

# Column of a table -> quantity, scale and digits
ENDS = {
    f"reward, last {WINDOW} steps": ("reward", 1, 3), "best to last, points": ("drop", 100, 1),
    "entropy at the end, nats": ("entropy", 1, 3), "its spread": ("spread", 1, 4), "about its trend": ("wobble", 1, 4),
}  # fmt: skip
THREE = {"accuracy, %": ("accuracy", 100), f"reward, last {WINDOW} steps": ("reward", 1, 3),
         "entropy, nats": ("entropy", 1, 3)}  # fmt: skip
TRAINING = {
    "gradient norm": ("grad_norm", 1, 2), f"above {CLIP_GRAD}, where it is clipped, % of steps": ("clipped", 100),
    "covariance": ("covariance_before", 1, 3), "after reweighting": ("covariance_after", 1, 3),
    "tokens with w < 0.5, %": ("downweighted_share", 100), "groups that are reweighted, %": ("signal_share", 100),
}  # fmt: skip
UPDATES = {"length": "length of a batch's gradient", "slope": "rise of the expected reward along it",
           "slope_by_length": "the same, over the length"}  # fmt: skip
SHARES = {"tokens": "of all tokens, %", "grpo": "of the squared gradient under GRPO, %", "cw_grpo": "under CW-GRPO, %"}


def outcome(run: pd.DataFrame) -> dict[str, float]:
    """Where a run ends; ``run`` has a row for each step, by step, and nan where a step has no such value."""
    accuracy, entropy, last = run.accuracy.dropna(), run.entropy.dropna(), run.index.max()
    late = entropy.rolling(WINDOW).mean().loc[last // 2 + WINDOW :]  # of windows in the second half
    start, end = entropy.loc[:WINDOW].mean(), entropy.loc[last - WINDOW + 1 :].mean()
    drop, failed = accuracy.max() - accuracy[last], bool(run.get("failed", run.step * 0).iloc[-1])
    return {
        "accuracy": accuracy[last], "start": accuracy[0], "drop": drop, "entropy": end,
        "reward": 0.0 if failed else run.reward.loc[last - WINDOW + 1 :].mean(),
        "spread": late.std(ddof=0), "wobble": about_its_trend(late).std(ddof=0),
        "fell": failed or drop > FALL, "emptied": failed or end < LOW * start, "surged": end > SURGE * start,
    }  # fmt: skip


def about_its_trend(values: pd.Series) -> pd.Series:
    """What a straight line through them leaves."""
    return values - np.polyval(np.polyfit(values.index, values, 1), values.index) if len(values) > 1 else values


def outcomes(steps: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """A row for each run."""
    runs = steps.set_index("step", drop=False).groupby(key, sort=False)
    return pd.DataFrame([dict(zip(key, of, strict=True)) | outcome(run) for of, run in runs])


def shown(values: pd.Series, scale: float = 1.0, digits: int = 1) -> str | None:
    """Mean and 95% interval over seeds."""
    mean, _, high = (value * scale for value in intervals.mean_over_seeds(values))
    return None if mean != mean else spoken(mean, high, digits)


def spoken(value: float, high: float, digits: int, sign: str = "") -> str:
    return f"{value:{sign}.{digits}f}" + (f" ± {high - value:.{digits}f}" if high == high else "")


def cells(runs: pd.DataFrame, columns: Mapping[str, tuple]) -> dict[str, str | None]:
    return {label: shown(runs[what], *how) for label, (what, *how) in columns.items()}


def compared(ours: pd.DataFrame, theirs: pd.DataFrame, what: str = "accuracy") -> intervals.Difference:
    return intervals.over_seeds(ours.set_index("seed")[what], theirs.set_index("seed")[what])


def points(found: intervals.Difference, scale: float = 100, digits: int = 1) -> str:
    return spoken(round(found.value * scale, 9), found.high * scale, digits, "+")  # else a sum's last bit decides a tie


def said(p: float | None, digits: int = 3) -> str | None:
    """Never 0; None without a test."""
    return None if p is None or p != p else f"< {10**-digits}" if p < 10**-digits else f"{p:.{digits}f}"


def by_method(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {method: runs[runs.method == method] for method in NAMES if (runs.method == method).any()}


def table(title: str, rows: list[dict[str, Any]], *notes: str) -> Table:
    return Table(title, title, pd.DataFrame(rows), list(notes))


def ends(title: str, steps: pd.DataFrame, start: pd.Series) -> Table:
    """Where every method ends; ``start`` are accuracies of the starting model."""
    rows, key = [], ["method", "lr", "seed"]
    for method, runs in by_method(outcomes(steps, key)).items():
        gain = intervals.over_seeds(pd.Series(runs.accuracy.to_numpy()), start)  # Welch's
        head = {"": NAMES[method], "learning rate": ", ".join(sorted(set(runs.lr)))}
        head |= {"accuracy at the end, %": shown(runs.accuracy, 100), "above the start, points": points(gain)}
        fell = f"{runs.fell.sum()} / {runs.emptied.sum()} of {len(runs)}"
        seconds = f"{steps[steps.method == method].seconds.median():.2f}"
        rows.append(head | cells(runs, ENDS) | {"collapsed: accuracy / entropy": fell, "s/step": seconds})
    apart = f"differ by at most {steps.rollout_difference.max():.0e} in any step."
    return table(title, rows, started(start), f"A token's probability in vLLM and that in the trainer {apart}")


def started(start: pd.Series) -> str:
    return f"The model that all runs start from: {shown(start, 100)}% over {len(start)} validations."


def paired(steps: pd.DataFrame, against: str) -> Table:
    """Every method against one of them, seed by seed."""
    runs = by_method(outcomes(steps, ["method", "seed"]))
    theirs, rows = runs.pop(against), []
    for method, ours in runs.items():
        rows.append({"": NAMES[method]})
        for label, (what, *how) in ({"accuracy at the end, points": ("accuracy", 100, 1)} | ENDS).items():
            found = compared(ours, theirs, what)
            rows[-1][label] = f"{points(found, *how)} (p {said(found.p)})"
    entropy = steps[steps.step > study.STEPS // 2].pivot(index="step", columns=["method", "seed"], values="entropy")
    late = entropy.apply(about_its_trend)
    spread = late.drop(columns=against).std(ddof=0).mean()
    together = np.mean([late[of].corr(late[against, of[1]]) for of in late if of[0] != against])
    return table(f"Against {NAMES[against]}, paired by seed", rows,
        "Mean differences with 95% confidence intervals. p is that of a paired t-test, not corrected for the number of "
        "tests.",
        f"From step to step, about a line through the second half, entropy varies by {spread:.4f} nats. Means of "
        f"{WINDOW} independent steps would vary by {spread / WINDOW**0.5:.4f}. Runs of one seed vary together with "
        f"{NAMES[against]} (r = {together:.2f}), because they have the same problems.")  # fmt: skip


def corrected(steps: pd.DataFrame) -> Table:
    """The paper's method against every other."""
    runs, what = by_method(outcomes(steps, ["method", "seed"])), ("accuracy", "reward")
    ours = runs.pop("cw_grpo")
    found = {(method, name): compared(ours, of, name) for method, of in runs.items() for name in what}
    p = {key: said(value, 2) for key, value in intervals.holm({key: of.p for key, of in found.items()}).items()}
    rows = [
        {"": NAMES[method], "accuracy, points": points(found[method, "accuracy"]), "p": p[method, "accuracy"],
         "reward": points(found[method, "reward"], 1, 3), "p of the reward": p[method, "reward"]} for method in runs
    ]  # fmt: skip
    note = f"Paired by seed. p is corrected for {len(found)} tests (Holm)."
    return table(f"{NAMES['cw_grpo']} less each other method", rows, note)


def along(title: str, steps: pd.DataFrame, at: range, window: int, what: str, *how: int) -> Table:
    """A quantity and the entropy along the way."""
    rows = []
    for method, of in by_method(steps).items():
        rows.append({"": NAMES[method]})
        for step in at:
            within = of[of.step.between(step - window + 1, step)].groupby("seed")[["reward", "entropy"]].mean()
            values = of[of.step == step].accuracy if what == "accuracy" else within[what]
            rows[-1][f"step {step}"] = f"{shown(values, *how)}" + (f" ({within.entropy.mean():.3f})" if step else "")
    unit = "Accuracy in per cent" if what == "accuracy" else f"Mean reward of the {window} steps up to this one"
    return table(title, rows, f"{unit}, and in parentheses the mean entropy of the {window} steps up to it, in nats.")


def concentration(tokens: Mapping[str, pd.DataFrame]) -> Table:
    rows = [{"": name} for name in tokens]
    for row, of in zip(rows, tokens.values(), strict=True):
        for sign, label in ((1, "positive"), (-1, "negative")):
            side = covariance.one_side(of, sign)
            shares, held = side.tokens / side.tokens.iloc[-1], side.held / side.held.iloc[-1]
            row |= {f"{label}, top {top:.0%}": f"{np.interp(top, shares, held) * 100:.0f}" for top in (0.01, 0.05, 0.2)}
    title = "Share of a side's covariance that its most extreme tokens hold, %"
    return table(title, rows, "Records of step 1 and every 50th; the loss writes none.")


def in_training(steps: pd.DataFrame) -> Table:
    steps = steps[steps.step > 0].assign(clipped=steps.grad_norm > CLIP_GRAD)
    means = by_method(steps.groupby(["method", "seed"]).mean(numeric_only=True).reset_index())
    every = {key: TRAINING if key.startswith("cw_grpo") else dict([*TRAINING.items()][:4]) for key in means}
    rows = [{"": NAMES[method]} | cells(runs, every[method]) for method, runs in means.items()]
    return table("In training", rows, "Means over all steps. A step's gradient norm is the mean of its two updates.")


def updates(gradients: pd.DataFrame) -> Table:
    """What gradients.py measured."""
    measured, t = gradients.set_index(["method", "quantity"]), stats.t.ppf(0.975, study.BLOCKS - 1)

    def estimate(method: str, quantity: str, scale: float = 1, digits: int = 2) -> str:
        value, error = measured.loc[(method, quantity), ["value", "error"]] * scale
        return spoken(value, value + t * error, digits)

    names = [method for method in NAMES if method != "grpo" and (method, "length") in measured.index]
    rows = [{"relative to GRPO's": NAMES[method]} | {label: estimate(method, of) for of, label in UPDATES.items()}
            for method in names]  # fmt: skip
    held = {name: estimate("cw_grpo", name, 100, 1) for name in gradients.quantity if name not in UPDATES}
    return table("Where the first update points", rows,
        f"{held['weak_tokens']}% of the tokens have a kernel below one half under {NAMES['cw_grpo']}; they hold "
        f"{held['weak_squares']}% of the sum of squared gradients with respect to the logits of tokens.",
        f"As many of the least probable tokens hold {held['unlikely_squares']}% of it; {held['weak_unlikely']}% of "
        "those with a low kernel are among them.",
        "Of the starting model; 95% intervals by jackknife over batches.")  # fmt: skip


def search(steps: pd.DataFrame) -> Table:
    rows, notes = [], []
    for method, of in by_method(steps.dropna(subset="accuracy")).items():
        validations = {lr: list(of[of.lr == lr].accuracy * 100) for lr in study.LEARNING_RATES}
        score = {lr: study.score(values) for lr, values in validations.items()}
        best = max(score, key=score.__getitem__)
        rows.append({"": NAMES[method]} | {lr: f"{score[lr]:.1f}{'*' if lr == best else ''}" for lr in score})
        notes += [f"{NAMES[method]} collapses in accuracy at {lr}: {', '.join(f'{value:.1f}' for value in values)}."
                  for lr, values in validations.items() if max(values) - values[-1] > FALL * 100]  # fmt: skip
    return table("Search for the learning rate", rows,
        "Accuracy in per cent, mean of steps 50 and 100, on problems that are used for nothing else: 1,024 answers, a "
        "standard error of about 1.6, so that neighbouring rates are not told apart.",
        "* is the method's best; at an edge of the grid the best may lie beyond it.",
        started(steps[steps.step == 0].accuracy), *notes)  # fmt: skip


def read_study(folder: Path) -> pd.DataFrame:
    """All steps; the beginning of a long run is a run of the comparison as well."""
    steps = pd.read_parquet(folder / "metrics.parquet").astype(dict.fromkeys(("accuracy", "reward", "entropy"), float))
    begun = steps[(steps.phase == "long") & (steps.step <= study.STEPS)].assign(phase="main")
    return pd.concat([steps, begun]).sort_values(["method", "seed", "step"], kind="stable", ignore_index=True)


def study_page(folder: Path) -> tuple[list[Table], dict[str, Figure]]:
    steps, records = read_study(folder), pd.read_parquet(folder / "covariance.parquet")
    main, long, ablation, searched = (steps[steps.phase == name] for name in ("main", "long", "ablation", "search"))
    changed = pd.concat([main[main.method == "cw_grpo"], ablation])
    start = pd.concat([main, ablation]).query("step == 0").accuracy.reset_index(drop=True)
    tokens = {NAMES[method]: of for method, of in by_method(records).items()}
    grpo, ours = NAMES["grpo"], NAMES["cw_grpo"]
    tables = [
        ends("Methods, mean and 95% interval over seeds", main, start), corrected(main), paired(main, "grpo"),
        along("Checkpoints, mean and 95% interval over seeds", main, range(0, 201, 50), WINDOW, "accuracy", 100, 1),
        ends(f"{ours} with a part changed, at its learning rate", changed, start), paired(changed, "cw_grpo"),
        ends("One long run of each method", long, start),
        along("Checkpoints of the long runs", long, range(0, 1001, 200), WINDOW, "accuracy", 100, 1),
        along("Reward and entropy of the long runs", long, range(100, 1001, 100), 100, "reward", 1, 3),
        concentration(tokens), *(covariance.table_1(name, tokens[name], reported=True) for name in (grpo, ours)),
        in_training(main), updates(pd.read_parquet(folder / "gradients.parquet")), search(searched),
    ]  # fmt: skip
    drawn = {}
    for name, of in {"both": main[main.method.isin(["grpo", "cw_grpo"])], "main": main, "long": long}.items():
        for what, *how in (("entropy", "Policy entropy", "nats", WINDOW),
                           ("accuracy", "Accuracy on held-out problems", "", 1, True)):  # fmt: skip
            series = {NAMES[method]: [run.set_index("step")[what].dropna() for _, run in runs.groupby("seed")]
                      for method, runs in by_method(of).items()}  # fmt: skip
            drawn[f"{name}-{what}"] = figures.curves(series, *how, size=(5.2, 3.6))
    drawn["contributions"] = figures.contributions(tokens)
    ours_alone = {name: of for name, of in tokens.items() if name.startswith("CW-GRPO")}
    return tables, drawn | {"weights": figures.weights(ours_alone, list(tokens))}


class Boundary:
    """The boundary study: ``steps`` has a row for each step, ``runs`` for each run, both with the setting's name."""

    def __init__(self, folder: Path) -> None:
        steps = pd.read_parquet(folder / "metrics.parquet")
        runs = steps[list(plan.AXES)].itertuples(index=False, name=None)
        steps["point"] = [plan.Run(**dict(zip(plan.AXES, run, strict=True))).name for run in runs]
        self.steps = steps.astype(dict.fromkeys(("accuracy", "reward", "entropy", *EARLY), float))
        self.runs = outcomes(self.steps, ["point", "method", "seed"])

    def of(self, point: plan.Run, method: str) -> pd.DataFrame:
        return self.runs[(self.runs.point == point.name) & (self.runs.method == method)]

    def less_grpo(self, point: plan.Run, what: str = "accuracy") -> intervals.Difference:
        return compared(self.of(point, "cw_grpo"), self.of(point, "grpo"), what)

    def settings(self, title: str, every: list[plan.Run]) -> Table:
        p = intervals.holm({point: self.less_grpo(point).p for point in every}, len(every))
        rows = []
        for point in every:
            runs = {name: self.of(point, method) for method, name in SHORT.items()}
            start = pd.concat(runs.values()).start.mean() * 100
            rows.append({
                "changed from the centre": point.name, "start, %": f"{start:.1f}",
                **{f"{name}, %": shown(of.accuracy, 100) for name, of in runs.items()},
                "CW-GRPO less GRPO, points": points(self.less_grpo(point)), "p": said(p.get(point)),
                "in reward": points(self.less_grpo(point, "reward"), 1, 3),
                "entropy, GRPO / CW-GRPO": " / ".join(f"{runs[of].entropy.mean():.3f}" for of in ("GRPO", "CW-GRPO")),
                **{f"collapsed, {name}": f"{of.fell.sum()} / {of.emptied.sum()} of {len(of)}"
                   for name, of in runs.items()},
            })  # fmt: skip
        return table(title, rows,
            f"Accuracy after {plan.STEPS} steps, mean and 95% interval over seeds. Differences are paired by seed. p "
            f"is corrected for {len(every)} tests (Holm). Collapsed: in accuracy / in entropy. Reward and entropy, in "
            f"nats, are means of the last {WINDOW} steps, the reward before any of it is flipped.")  # fmt: skip

    def together(self) -> Table:
        """What the README counts over all settings, and question (b)."""
        rows, above = [], "steps at the centre with a gradient norm above 1"
        for method, name in SHORT.items():
            runs = pd.concat([self.of(point, method) for point in plan.POINTS])
            centre = self.steps[(self.steps.method == method) & (self.steps.point == plan.CENTRE.name)]
            rows.append({"": name, "runs": len(runs), "collapsed in accuracy": runs.fell.sum(),
                         "in entropy": runs.emptied.sum(), "entropy more than doubled": runs.surged.sum(),
                         above: f"{(centre.grad_norm.dropna() > CLIP_GRAD).mean():.0%}"})  # fmt: skip
        none, *_, six = ([self.of(point, method).set_index("seed").accuracy for method in ("cw_grpo", "grpo")]
                         for point in plan.LINES["fillers"])  # fmt: skip
        change = intervals.over_seeds(six[0] - six[1], none[0] - none[1])
        note = f"With 6 fillers, CW-GRPO less GRPO changes by {points(change)} points (p {said(change.p)})."
        return table("All settings together", rows, note)

    def ablation(self) -> Table:
        paper = self.of(plan.CENTRE, "cw_grpo")
        found = {method: compared(self.of(plan.CENTRE, method), paper) for method in plan.ABLATION}
        p, less = intervals.holm({method: of.p for method, of in found.items()}), "less the paper's, points"
        rows = [
            {"kernel": name} | cells(self.of(plan.CENTRE, method), THREE)
            | {less: points(found[method]) if method in found else None, "p": said(p.get(method))}
            for method, name in plan.KERNELS.items()
        ]  # fmt: skip
        return table("Width and side of the kernel, at the centre", rows, f"p is corrected for {len(p)} tests (Holm).")

    def foretold(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Of each setting, the mean of a metric over CW-GRPO's first steps, and the difference in points."""
        first = self.steps[(self.steps.method == "cw_grpo") & self.steps.step.between(1, EARLY_STEPS)]
        means = first.groupby("point")[metric].mean()
        x, y = np.array([(means[point.name], self.less_grpo(point).value * 100) for point in plan.POINTS]).T
        return x, y

    def early(self) -> Table:
        """Question (c): Spearman's correlation, its bootstrap interval and a permutation test."""
        p, found = {}, {}
        for metric in EARLY:
            (x, y), rng = self.foretold(metric), np.random.default_rng(0)
            r = spearman(x, y)
            drawn = [spearman(x[at], y[at]) for at in rng.integers(len(x), size=(RESAMPLES, len(x)))]
            chance = np.array([spearman(x, rng.permutation(y)) for _ in range(RESAMPLES)])
            p[metric] = (1 + (np.abs(chance) >= abs(r) - 1e-12).sum()) / (RESAMPLES + 1)
            found[metric] = "{:.2f} ({:.2f} to {:.2f})".format(r, *np.nanquantile(drawn, (0.025, 0.975)))
        p, first = intervals.holm(p), f"mean of CW-GRPO's first {EARLY_STEPS} steps"
        rows = [{first: f"`{metric}`", "correlation with the difference in accuracy": found[metric],
                 "p": said(p[metric])} for metric in EARLY]  # fmt: skip
        note = f"Spearman's, over settings, with a 95% bootstrap interval. p is corrected for {len(p)} tests (Holm)."
        return table("Do the first steps foretell the outcome?", rows, note)

    def hosts(self) -> Table:
        """The centre here, and the study's runs with verl up to the same step."""
        verl = read_study(HERE / "results").query("phase == 'main' and lr == @plan.CENTRE.lr and step <= @plan.STEPS")
        theirs = by_method(outcomes(verl, ["method", "seed"]))
        rows = []
        for method in plan.METHODS:
            rows.append({"": f"{SHORT[method]}, TRL, here"} | cells(self.of(plan.CENTRE, method), THREE))
            rows.append({"": f"{SHORT[method]}, verl, the study"} | cells(theirs[method], THREE))
        note = f"After {plan.STEPS} steps. Accuracy is of 1,024 answers with TRL and of 512 with verl."
        return table("Do the hosts agree?", rows, note)

    def map(self) -> Figure:
        title = "Accuracy of CW-GRPO less that of GRPO, points"
        figure, axes = figures.new(title, "learning rate", "updates from one batch", (6.4, 4.2))
        found = [round(self.less_grpo(point).value * 100, 9) for point in plan.MAP]
        grid = np.array(found).reshape(len(plan.UPDATES), -1)
        for place, point in enumerate(plan.MAP):
            both = [self.of(point, method) for method in plan.METHODS]
            fell = f"collapsed {both[0].fell.sum()} | {both[1].fell.sum()} of {len(both[0])}"
            mean = " | ".join(f"{runs.accuracy.mean() * 100:.1f}" for runs in both)
            row, column = divmod(place, grid.shape[1])
            text = f"{grid[row, column]:+.1f}\n{mean}\n{fell}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8)
        limit = max(10, np.abs(grid).max())
        figure.colorbar(axes.imshow(grid, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto", alpha=0.7))
        axes.set_xticks(range(len(plan.LEARNING_RATES)), plan.LEARNING_RATES)
        axes.set_yticks(range(len(plan.UPDATES)), [str(number) for number in plan.UPDATES])
        axes.grid(False)
        return figure

    def lines(self) -> Figure:
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        panels = figure.subplots(1, len(plan.LINES), sharey=True)
        panels[0].set_ylabel("accuracy at the end, %")
        for axes, (name, line) in zip(panels, plan.LINES.items(), strict=True):
            axes.set_title(plan.AXES[name].format("N"), fontsize=9)
            axes.set_xticks(range(len(line)), [f"{getattr(point, name):g}" for point in line])
            for place, method in enumerate(SHORT):
                ends = [self.of(point, method).accuracy * 100 for point in line]
                axes.plot([runs.mean() for runs in ends], **figures.style(place))
                for x, runs in enumerate(ends):
                    axes.plot([x] * len(runs), runs, ".", color=figures.style(place)["color"])
        figures.legend(figure, list(SHORT.values()))
        return figure

    def scatter(self) -> Figure:
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        for axes, metric in zip(figure.subplots(1, 2), EARLY, strict=True):
            axes.set(xlabel=f"{metric}, CW-GRPO's first {EARLY_STEPS} steps", ylabel="CW-GRPO less GRPO, points")
            axes.axhline(0, color=figures.FAINT, linewidth=0.8)
            axes.scatter(*self.foretold(metric), s=14, color=figures.style(0)["color"])
        return figure


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(stats.rankdata(x), stats.rankdata(y))[0, 1])


def first_wrong(measured: pd.DataFrame) -> Table:
    """What first_wrong.py has measured."""
    total = measured.iloc[:3][list(SHARES)].sum()  # the others overlap these
    columns = {label: (measured[name] / total[name] * 100).map("{:.1f}".format) for name, label in SHARES.items()}
    for name, label in (("surprisal", "surprisal, nats"), ("entropy", "entropy at its position, nats")):
        columns[label] = (measured[name] / measured.tokens).map("{:.2f}".format)
    return Table("first-wrong", "Where the gradient is, on the starting model",
        pd.DataFrame({"": measured.kind} | columns),
        [f"Under CW-GRPO the sum of squares is {total.cw_grpo / total.grpo:.1%} of that under GRPO. Surprisal is "
         "-log π of the sampled token. It and the entropy are means. The fifths are those of a batch of 64 responses, "
         "and overlap the three kinds."])  # fmt: skip


def boundary_page(folder: Path) -> tuple[list[Table], dict[str, Figure]]:
    every = Boundary(folder)
    tables = [
        every.settings("Every setting", plan.POINTS), every.together(), every.ablation(), every.early(),
        first_wrong(pd.read_parquet(folder / "first_wrong.parquet")),
        every.settings("Without a limit on the gradient norm", plan.CONTROLS), every.hosts(),
    ]  # fmt: skip
    return tables, {"map": every.map(), "lines": every.lines(), "early": every.scatter()}


PAGES = {
    "study": (study_page, HERE / "results", "Entropy is a mean of 25 steps; a band is a standard deviation of seeds."),
    "boundary": (boundary_page, HERE / "boundary" / "results",
                 "A cell of the map: the difference, the accuracy of GRPO | CW-GRPO, the runs that collapsed."),
}  # fmt: skip


def main(name: str, folder: Path | None = None) -> None:
    page, committed, caption = PAGES[name]
    folder = folder or committed
    tables, drawn = page(folder)
    for file, figure in drawn.items():
        figures.save(figure, folder / file, ["svg"])
    images = "".join(f"![{file}]({file}.svg)\n" for file in drawn)
    title = {"study": "study", "boundary": "boundary study"}[name]
    head = f"# Results of the {title}\n\nWritten by `examples/study/report.py`.\n\n"
    write_whole(folder / "README.md", "\n".join([head + images, caption, "", *(of.markdown() for of in tables)]))


if __name__ == "__main__":
    for name in sys.argv[1:2] or PAGES:
        main(name, *(Path(folder).resolve() for folder in sys.argv[2:3]))
