"""Usage: python examples/study/report.py study|boundary [RESULTS]. Writes the page of a study, README.md, and its
figures from the parquet files beside them (by default the committed ones); sizes/page.py writes the size study's."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "boundary"))
import plan  # noqa: E402
import study  # noqa: E402
from markdown_tables import markdown  # noqa: E402

from cw_plugin.files import write_whole  # noqa: E402
from cw_plugin.lab import intervals  # noqa: E402
from cw_plugin.lab.reports import covariance, figures  # noqa: E402
from cw_plugin.lab.reports.table_formats import Table  # noqa: E402

app = typer.Typer(help="The page and the figures of a study's results.", add_completion=False)
Results = Annotated[Path, typer.Argument(exists=True, show_default="the committed ones", metavar="RESULTS")]
NAMES, SHORT = study.NAMES, plan.NAMES
WINDOW = 25  # steps that metrics are averaged over: single batches differ more than methods do
FALL = 0.10  # accuracy below the run's best from which on a run has collapsed
LOW, SURGE = 0.1, 2.0  # times the entropy of the first steps: below the one it has collapsed, above the other surged
EARLY, EARLY_STEPS, RESAMPLES = ("extreme_gradient_share", "extreme_balance"), 20, 1999

THREE = {"accuracy, %": ("accuracy", 100, 1), f"reward, last {WINDOW} steps": ("reward", 1, 3),
         "entropy, nats": ("entropy", 1, 3)}  # column of a table -> quantity, scale and digits  # fmt: skip
ENDS = THREE | {"best to last, points": ("drop", 100, 1), "spread of the entropy": ("spread", 1, 4)}
CURVES = {"entropy": ("Policy entropy", "nats", WINDOW), "accuracy": ("Accuracy on held-out problems", "", 1, True)}
UPDATES = {"length": "length of a batch's gradient", "slope": "rise of the expected reward along it",
           "slope_by_length": "the same, over the length"}  # fmt: skip
# Table 1 of the paper: DeepSeek-R1-Distill-Qwen-1.5B, GRPO, 50 steps
REPORTED = {"positive": (11.52, 3.32, 0.58, 0.33, 0.06), "negative": (-13.62, -3.34, -0.36, -0.22, -0.04)}
SHARES = {"tokens": "of all tokens, %", "grpo": "of the squared gradient under GRPO, %", "cw_grpo": "under CW-GRPO, %"}


def outcome(run: pd.DataFrame) -> dict[str, float]:
    """Where a run ends; ``run`` has a row for each step, by step, and nan where a step has no such value."""
    accuracy, entropy, last = run.accuracy.dropna(), run.entropy.dropna(), run.index.max()
    late = entropy.rolling(WINDOW).mean().loc[last // 2 + WINDOW :]  # of windows in the second half
    late -= np.polyval(np.polyfit(late.index, late, 1), late.index)
    start, end = entropy.loc[:WINDOW].mean(), entropy.loc[last - WINDOW + 1 :].mean()
    drop = accuracy.max() - accuracy[last]
    return {
        "accuracy": accuracy[last], "start": accuracy[0], "drop": drop, "entropy": end,
        "reward": run.reward.loc[last - WINDOW + 1 :].mean(), "spread": late.std(ddof=0),
        "fell": drop > FALL, "emptied": end < LOW * start, "surged": end > SURGE * start,
    }  # fmt: skip


def outcomes(steps: pd.DataFrame, *of_run: str) -> pd.DataFrame:
    """A row for each run, which method, seed and the columns ``of_run`` tell from others."""
    key = [*of_run, "method", "seed"]
    runs = steps.set_index("step", drop=False).groupby(key, sort=False)
    return pd.DataFrame([dict(zip(key, name, strict=True)) | outcome(run) for name, run in runs])


def by_method(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {method: rows[rows.method == method] for method in NAMES if (rows.method == method).any()}


def spoken(mean: float, half: float, digits: int, sign: str = "") -> str:
    return f"{mean:{sign}.{digits}f}" + (f" ± {half:.{digits}f}" if half == half else "")


def spoken_p(p: float | None) -> str | None:
    """Never 0, and None where nothing varies."""
    return None if p is None or p != p else "< 0.001" if p < 0.001 else f"{p:.3f}"


def shown(values: pd.Series, scale: float = 1, digits: int = 1, sign: str = "") -> str | None:
    """Mean and 95% interval over seeds."""
    mean, _, high = (value * scale for value in intervals.mean_over_seeds(values))
    shown = round(mean, 9) + 0.0 if sign else mean  # of a difference, the last bit of a sum would decide a tie
    return spoken(shown, high - mean, digits, sign) if mean == mean else None


def cells(runs: pd.DataFrame, columns: dict[str, tuple]) -> dict[str, str | None]:
    return {label: shown(runs[what], *how) for label, (what, *how) in columns.items()}


def less(ours: pd.DataFrame, theirs: pd.DataFrame, what: str = "accuracy") -> pd.Series:
    """The difference of two methods, by seed."""
    return ours.set_index("seed")[what] - theirs.set_index("seed")[what]


def p_of(differences: dict[Any, pd.Series], corrected: bool = True) -> dict[Any, str | None]:
    """Of paired t-tests, corrected for their number (Holm)."""
    p = {key: stats.ttest_1samp(values, 0).pvalue for key, values in differences.items() if values.std() > 1e-9}
    p = intervals.holm(p, len(differences)) if corrected else p
    return {key: spoken_p(p.get(key)) for key in differences}


def compared(title: str, ours: dict, theirs: dict, corrected: bool = True) -> Table:
    """Differences in accuracy and reward, ours minus theirs; both are dicts: method -> runs."""
    columns = {"accuracy, points": ("accuracy", 100, 1, "+"), "reward": ("reward", 1, 3, "+")}
    found = {(name, of): less(ours[name], theirs[name], columns[of][0]) for name in ours for of in columns}
    p = p_of(found, corrected)
    rows = [{"": NAMES[name]} | {of: f"{shown(found[name, of], *columns[of][1:])} (p {p[name, of]})" for of in columns}
            for name in ours]  # fmt: skip
    how = f"corrected for {len(found)} tests (Holm)" if corrected else "not corrected for the number of tests"
    return table(title, rows, f"Paired by seed. p is {how}.")


def table(title: str, rows: Any, *notes: str) -> Table:
    return Table(title, title, pd.DataFrame(rows), list(notes))


def write(results: Path, home: Path, title: str, command: str, caption: str, tables: list, drawn: dict) -> None:
    """Write README.md and the figures of a study, whose folder is ``home``."""
    for file, figure in drawn.items():
        figures.save(figure, results / file, ["svg"])
    readme = os.path.relpath(home / "README.md", results)
    about = f"All tables and figures of [the {title}]({readme}), written by `python examples/study/{command}`."
    images = "".join(f"![{file}]({file}.svg)\n" for file in drawn)
    head = f"# Results of the {title}\n\n{about}\n\n{images}\n{caption}\n"
    write_whole(results / "README.md", "\n".join([head, *(markdown(of) for of in tables)]))


def ends(title: str, steps: pd.DataFrame, start: pd.Series) -> Table:
    """Where every method ends; ``start`` are accuracies of the starting model."""
    rows = []
    for method, runs in by_method(outcomes(steps, "lr")).items():
        gain = intervals.welch(runs.accuracy, start)
        rows.append({
            "": NAMES[method], "learning rate": ", ".join(sorted(set(runs.lr))), **cells(runs, ENDS),
            "above the start, points": spoken(gain.value * 100, (gain.high - gain.value) * 100, 1, "+"),
            "collapsed: accuracy / entropy": f"{runs.fell.sum()} / {runs.emptied.sum()} of {len(runs)}",
            "s/step": f"{steps[steps.method == method].seconds.median():.2f}",
        })  # fmt: skip
    return table(title, rows, started(start), "In no step does a token's probability in vLLM differ from that in the "
                 f"trainer by more than {steps.rollout_difference.max():.0e}.")  # fmt: skip


def started(start: pd.Series) -> str:
    return f"The model that all runs start from has an accuracy of {shown(start, 100)}%, over {len(start)} validations."


def hundreds(long: pd.DataFrame) -> Table:
    trained = long[long.step > 0].assign(step=(long.step - 1) // 100 * 100 + 100)
    means = trained.groupby(["method", "step"])[["reward", "entropy"]].mean()
    text = means.apply(lambda mean: f"{mean.reward:.3f} ({mean.entropy:.3f})", axis=1).unstack().add_prefix("step ")
    rows = [{"": NAMES[method]} | text.loc[method].to_dict() for method in by_method(long)]
    return table("Reward and entropy of the long runs", rows, "Each cell has the mean reward of the 100 steps up to "
                 "this one, and in parentheses their mean entropy, in nats.")  # fmt: skip


def updates(gradients: pd.DataFrame) -> Table:
    """Which way the first update of each method points, and which way the gradient of the expected reward does."""
    t = stats.t.ppf(0.975, 15)  # for the standard errors, one of 16 blocks of batches at a time was left out
    text = []
    for of in gradients.itertuples():
        scale, digits = (1, 2) if of.quantity in UPDATES else (100, 1)  # the others are shares
        text.append(spoken(of.value * scale, of.error * t * scale, digits))
    text = gradients.assign(text=text).pivot(index="method", columns="quantity", values="text")
    rows = [{"relative to GRPO's": NAMES[method]} | {label: text[what][method] for what, label in UPDATES.items()}
            for method in by_method(gradients) if method != "grpo"]  # fmt: skip
    ours = text.loc["cw_grpo"]
    return table("Where the first update points", rows,
        f"On the starting model, under {NAMES['cw_grpo']}, {ours.weak_tokens}% of the tokens have a kernel below one "
        f"half. They hold {ours.weak_squares}% of the sum of squared gradients with respect to the logits of tokens. "
        f"The same number of tokens with the lowest probability hold {ours.unlikely_squares}% of it, and include "
        f"{ours.weak_unlikely}% of the tokens with a low kernel. The 95% intervals are those of a jackknife over 16 "
        "parts of the batches.")  # fmt: skip


def search(steps: pd.DataFrame) -> Table:
    scores = steps[steps.step > 0].groupby(["method", "lr"]).accuracy.mean().unstack()[list(study.LEARNING_RATES)] * 100
    text = scores.map("{:.1f}".format) + np.where(scores.eq(scores.max(axis=1), axis=0), "*", "")
    fell = [f"{NAMES[run.method]} collapses in accuracy at {run.lr}, from {100 * (run.accuracy + run.drop):.1f} to "
            f"{100 * run.accuracy:.1f}%." for run in outcomes(steps, "lr").itertuples() if run.fell]  # fmt: skip
    return table("Search for the learning rate",
        [{"": NAMES[method]} | text.loc[method].to_dict() for method in by_method(steps)],
        "Accuracy in per cent, averaged over steps 50 and 100. It is measured on 1,024 answers to problems that are "
        "used for nothing else, with a standard error of about 1.6 points. * marks the method's best.",
        started(steps[steps.step == 0].accuracy), *fell)  # fmt: skip


def read_study(folder: Path) -> pd.DataFrame:
    """All steps; the beginning of a long run is a run of the comparison as well."""
    steps = pd.read_parquet(folder / "metrics.parquet").astype(dict.fromkeys(("accuracy", "reward", "entropy"), float))
    begun = steps[(steps.phase == "long") & (steps.step <= study.STEPS)].assign(phase="main")
    return pd.concat([steps, begun]).sort_values(["method", "seed", "step"], kind="stable", ignore_index=True)


@app.command("study")
def study_page(results: Results = HERE / "results") -> None:
    """The study's page."""
    steps, records = read_study(results), pd.read_parquet(results / "covariance.parquet")
    main, long, ablation, searched = (steps[steps.phase == name] for name in ("main", "long", "ablation", "search"))
    start = pd.concat([main, ablation]).query("step == 0").accuracy.reset_index(drop=True)
    tokens = {NAMES[method]: of for method, of in by_method(records).items()}
    runs, variants, ours = by_method(outcomes(main)), by_method(outcomes(ablation)), NAMES["cw_grpo"]
    paper = runs.pop("cw_grpo")
    table_1 = [covariance.table_1(name, tokens[name]) for name in (NAMES["grpo"], ours)]
    reported = {f"{sign} (reported)": values for sign, values in REPORTED.items()}
    drawn, both = {}, main[main.method.isin(["grpo", "cw_grpo"])]
    for name, of in {"both": both, "main": main, "long": long}.items():
        for what, how in CURVES.items():
            series = {NAMES[method]: [run.set_index("step")[what].dropna() for _, run in runs.groupby("seed")]
                      for method, runs in by_method(of).items()}  # fmt: skip
            drawn[f"{name}-{what}"] = figures.curves(series, *how, size=(5.2, 3.6))
    drawn["contributions"] = figures.contributions(tokens)
    write(results, HERE, "study", "report.py study",
        "In the figures, entropy is averaged over 25 steps, and a band shows one standard deviation over seeds. In the "
        'tables, "best to last" is the fall from a run\'s best validation to its last. It is above 0 even for a run '
        'that does not fall, because the best of noisy validations is high by chance. "Above the start" is the gain '
        "over the starting model, with Welch's interval.",
        [ends("Methods, mean and 95% interval over seeds", main, start),
         compared(f"{ours} minus each other method", dict.fromkeys(runs, paper), runs),
         ends(f"{ours} with a part changed, at its learning rate",
              pd.concat([main[main.method == "cw_grpo"], ablation]), start),
         compared(f"Changed parts minus {ours}", variants, dict.fromkeys(variants, paper), corrected=False),
         ends("One long run of each method", long, start), hundreds(long),
         *(table(one.title, one.frame.assign(**reported), *one.notes) for one in table_1),
         updates(pd.read_parquet(HERE / "results" / "gradients.parquet")), search(searched)], drawn)  # fmt: skip


class Boundary:
    """The boundary study: ``steps`` has a row for each step, ``runs`` for each run, both with the setting's name."""

    def __init__(self, folder: Path) -> None:
        steps = pd.read_parquet(folder / "metrics.parquet")
        steps["point"] = [plan.Run("", *setting).name for setting in steps[[*plan.AXES]].itertuples(index=False)]
        self.steps = steps.astype(dict.fromkeys(("accuracy", "reward", "entropy", *EARLY), float))
        self.runs = outcomes(self.steps, "point")

    def of(self, point: plan.Run, method: str) -> pd.DataFrame:
        return self.runs[(self.runs.point == point.name) & (self.runs.method == method)]

    def less_grpo(self, point: plan.Run, what: str = "accuracy") -> pd.Series:
        return less(self.of(point, "cw_grpo"), self.of(point, "grpo"), what)

    def settings(self, title: str, every: list[plan.Run]) -> Table:
        p, rows = p_of({point: self.less_grpo(point) for point in every}), []
        for point in every:
            runs = {name: self.of(point, method) for method, name in SHORT.items()}
            rows.append({
                "changed from the centre": point.name,
                "start, %": f"{pd.concat(runs.values()).start.mean() * 100:.1f}",
                **{f"{name}, %": shown(of.accuracy, 100) for name, of in runs.items()},
                "CW-GRPO minus GRPO, points": shown(self.less_grpo(point), 100, 1, "+"), "p": p[point],
                "in reward": shown(self.less_grpo(point, "reward"), 1, 3, "+"),
                "entropy, GRPO / CW-GRPO": " / ".join(f"{runs[of].entropy.mean():.3f}" for of in ("GRPO", "CW-GRPO")),
                **{f"collapsed, {name}": f"{of.fell.sum()} / {of.emptied.sum()} of {len(of)}"
                   for name, of in runs.items()},
            })  # fmt: skip
        return table(title, rows,
            f"Accuracy is that after {plan.STEPS} steps, as the mean and 95% interval over seeds. Differences are "
            f"paired by seed. p is corrected for {len(every)} tests (Holm). \"Collapsed\" counts the runs that "
            "collapsed in accuracy / in entropy. Reward, before any of it is flipped, and entropy, in nats, are means "
            f"of the last {WINDOW} steps.")  # fmt: skip

    def together(self) -> Table:
        """What the README counts over all settings, and question (b)."""
        rows, above = [], "steps at the centre with a gradient norm above 1"
        for method, name in SHORT.items():
            runs = pd.concat([self.of(point, method) for point in plan.POINTS])
            centre = self.steps[(self.steps.method == method) & (self.steps.point == plan.CENTRE.name)]
            rows.append({"": name, "runs": len(runs), "collapsed in accuracy": runs.fell.sum(),
                         "in entropy": runs.emptied.sum(), "entropy more than doubled": runs.surged.sum(),
                         above: f"{(centre.grad_norm.dropna() > plan.CENTRE.limit).mean():.0%}"})  # fmt: skip
        none, six = self.less_grpo(plan.CENTRE), self.less_grpo(plan.Run(fillers=6))
        change = f"{shown(six - none, 100, 1, '+')} points (p {p_of({6: six - none})[6]})"
        return table("All settings together", rows, f"With 6 fillers, CW-GRPO minus GRPO changes by {change}.")

    def kernels(self) -> Table:
        runs = {method: self.of(plan.CENTRE, method) for method in plan.KERNELS}
        found = {method: less(runs[method], runs["cw_grpo"]) for method in plan.ABLATION}
        p = p_of(found)
        column = "accuracy minus the paper's, points"
        text = {method: {column: shown(found[method], 100, 1, "+"), "p": p[method]} for method in p}
        rows = [{"kernel": name} | cells(runs[of], THREE) | text.get(of, {}) for of, name in plan.KERNELS.items()]
        return table("Width and side of the kernel, at the centre", rows, f"p is corrected for {len(p)} tests (Holm).")

    def early(self) -> Table:
        """Question (c): Spearman's correlation, its bootstrap interval and a permutation test."""
        begun = self.steps[(self.steps.method == "cw_grpo") & self.steps.step.between(1, EARLY_STEPS)].groupby("point")
        y, p, found = np.array([self.less_grpo(point).mean() for point in plan.POINTS]), {}, {}
        for metric in EARLY:
            x, rng = begun[metric].mean()[[point.name for point in plan.POINTS]].to_numpy(), np.random.default_rng(0)
            r = stats.spearmanr(x, y).statistic
            drawn = [stats.spearmanr(x[at], y[at]).statistic for at in rng.integers(len(x), size=(RESAMPLES, len(x)))]
            chance = [abs(stats.spearmanr(x, rng.permutation(y)).statistic) for _ in range(RESAMPLES)]
            p[metric] = (1 + np.sum(np.array(chance) >= abs(r) - 1e-12)) / (RESAMPLES + 1)
            found[metric] = "{:.2f} ({:.2f} to {:.2f})".format(r, *np.nanquantile(drawn, (0.025, 0.975)))
        p, first = intervals.holm(p), f"mean of CW-GRPO's first {EARLY_STEPS} steps"
        rows = [{first: f"`{metric}`", "correlation with the difference in accuracy": found[metric],
                 "p": f"{p[metric]:.3f}"} for metric in EARLY]  # fmt: skip
        note = f"Spearman's, over settings, with a 95% bootstrap interval. p is corrected for {len(p)} tests (Holm)."
        return table("Do the first steps predict the outcome?", rows, note)

    def hosts(self) -> Table:
        """The centre here, and the study's runs with verl up to the same step."""
        verl = read_study(HERE / "results").query("phase == 'main' and lr == @plan.CENTRE.lr and step <= @plan.STEPS")
        hosts = {"TRL, here": self.runs[self.runs.point == plan.CENTRE.name], "verl, the study": outcomes(verl)}
        rows = [{"": f"{SHORT[method]}, {host}"} | cells(runs[runs.method == method], THREE)
                for method in plan.METHODS for host, runs in hosts.items()]  # fmt: skip
        note = f"After {plan.STEPS} steps. Accuracy is measured on 1,024 answers with TRL and on 512 with verl."
        return table("Do TRL and verl agree?", rows, note)

    def map(self) -> Figure:
        title = "Accuracy of CW-GRPO minus that of GRPO, points"
        figure, axes = figures.new(title, "learning rate", "updates from one batch", (6.4, 4.2))
        grid = np.reshape([round(self.less_grpo(point).mean() * 100, 9) for point in plan.MAP], (len(plan.UPDATES), -1))
        for (row, column), value in np.ndenumerate(grid):
            both = [self.of(plan.MAP[row * grid.shape[1] + column], method) for method in plan.METHODS]
            means = " | ".join(f"{runs.accuracy.mean() * 100:.1f}" for runs in both)
            fell = " | ".join(str(runs.fell.sum()) for runs in both)
            text = f"{value:+.1f}\n{means}\ncollapsed {fell} of {len(both[0])}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8)
        limit = max(10, np.abs(grid).max())
        figure.colorbar(axes.imshow(grid, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto", alpha=0.7))
        axes.set(xticks=range(len(plan.LEARNING_RATES)), xticklabels=plan.LEARNING_RATES)
        axes.set(yticks=range(len(plan.UPDATES)), yticklabels=plan.UPDATES)
        axes.grid(False)
        return figure


def first_wrong(measured: pd.DataFrame) -> Table:
    """How much of the gradient the first wrong token of a response holds, what follows it, and the rest."""
    total = measured.iloc[:3][list(SHARES)].sum()  # the others overlap these
    columns = {label: (measured[name] / total[name] * 100).map("{:.1f}".format) for name, label in SHARES.items()}
    for name, label in (("surprisal", "surprisal, nats"), ("entropy", "entropy at its position, nats")):
        columns[label] = (measured[name] / measured.tokens).map("{:.2f}".format)
    return table("Where the gradient is, on the starting model", {"": measured.kind} | columns,
        f"Under CW-GRPO, the sum of squares is {total.cw_grpo / total.grpo:.1%} of that under GRPO. Surprisal is -log "
        "π of the sampled token. Surprisal and entropy are means over tokens. The fifths are those of a batch of 64 "
        "responses; their tokens also belong to one of the first three rows.")  # fmt: skip


@app.command("boundary")
def boundary_page(results: Results = HERE / "boundary" / "results") -> None:
    """The boundary study's page."""
    every = Boundary(results)
    write(results, HERE / "boundary", "boundary study", "report.py boundary",
        "A cell of the map shows the difference in accuracy, the accuracy of GRPO | CW-GRPO, and how many runs of each "
        'collapsed. "The centre" is a learning rate of 3e-5 and 2 updates from one batch; each other setting changes '
        "it.",
        [every.settings("Every setting", plan.POINTS), every.together(), every.kernels(), every.early(),
         first_wrong(pd.read_parquet(HERE / "boundary" / "results" / "first_wrong.parquet")),
         every.settings("Without a limit on the gradient norm", plan.CONTROLS), every.hosts()],
        {"map": every.map()})  # fmt: skip


if __name__ == "__main__":
    app()
