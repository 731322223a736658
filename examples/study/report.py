"""The study's page, its figures and the headline in the README here, from results/*.parquet alone.

python examples/study/report.py            # results/README.md, results/*.svg, and the section "In short" of README.md
python examples/study/report.py RESULTS    # the page and the figures of a folder of one's own
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import study
from scipy import stats

from cw_plugin.files import write_whole
from cw_plugin.reports import plots
from cw_plugin.reports.distribution import Distribution
from cw_plugin.reports.runs import Run
from cw_plugin.reports.tables import Table, table_1

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
README = HERE / "README.md"
BEGIN, END = "<!-- study: written by examples/study/report.py -->\n", "<!-- study: end -->\n"

METHODS = {
    "grpo": "GRPO",
    "clip_cov": "Clip-Cov, authors' ratio",
    "clip_cov_0.005": "Clip-Cov, ratio 0.005",
    "clip_cov_0.02": "Clip-Cov, ratio 0.02",
    "cw_grpo": "CW-GRPO (prompt group)",
    "cw_grpo_batch": "CW-GRPO, batch",
    "cw_grpo_loss": "CW-GRPO, loss",
}
VARIANTS = {
    "cw_grpo_uncentred": "without centring",
    "cw_grpo_unnormalised": "without normalisation",
    "cw_grpo_shuffled": "weights on random tokens",
}
NAMES = METHODS | VARIANTS
BASELINE, OURS = "grpo", "cw_grpo"

# The batches of single steps differ more than methods do, so that metrics of steps are averaged over this many: at the
# end of a run, and for the course of entropy.
WINDOW = 25
FALL = 0.10  # accuracy below the run's best from which on a run has collapsed
LOW = 0.1  # entropy at the end, as a share of that at the start, below which it has
CLIP_GRAD = 1.0  # train.sh

PHASES = ("main", "long")  # whose curves are drawn

Runs = dict[str, list["Result"]]  # method -> its runs
Gradients = dict[tuple[str, str], tuple[float, float]]  # method, quantity of gradients.py -> value, standard error


@dataclass(frozen=True)
class Result:
    """What one run did; ``columns`` are those of metrics.parquet, nan where a step has no such value."""

    phase: str
    method: str
    lr: str
    seed: int
    columns: dict[str, np.ndarray]

    def series(self, name: str) -> dict[int, float]:
        """Step -> value."""
        pairs = zip(self.columns["step"], self.columns[name], strict=True)
        return {int(step): float(value) for step, value in pairs if np.isfinite(value)}

    def mean(self, name: str, last: int, window: int = WINDOW) -> float:
        """Over the ``window`` steps that end with ``last``."""
        return float(np.mean([value for step, value in self.series(name).items() if last - window < step <= last]))

    @property
    def steps(self) -> int:
        return int(self.columns["step"].max())

    @property
    def accuracy(self) -> float:
        """On held-out problems, at the end."""
        return self.series("accuracy")[self.steps]

    @property
    def drop(self) -> float:
        return max(self.series("accuracy").values()) - self.accuracy

    @property
    def reward(self) -> float:
        return self.mean("reward", self.steps)

    @property
    def entropy(self) -> float:
        return self.mean("entropy", self.steps)

    @property
    def entropy_spread(self) -> float:
        """Standard deviation of the moving average over the second half."""
        return float(np.std(self._late_entropy))

    @property
    def entropy_wobble(self) -> float:
        """The same about a straight line, without which a steady fall counts as spread."""
        return float(np.std(about_its_trend(self._late_entropy)))

    @property
    def entropy_of_batches(self) -> np.ndarray:
        """Step by step, in the second half, about a straight line: how the batches differ."""
        return about_its_trend(np.array(list(self.series("entropy").values()))[self.steps // 2 :])

    @property
    def _late_entropy(self) -> np.ndarray:
        averages = plots.smooth(np.array(list(self.series("entropy").values())), WINDOW)
        return averages[self.steps // 2 + WINDOW - 1 :]

    @property
    def fell(self) -> bool:
        return self.drop > FALL

    @property
    def emptied(self) -> bool:
        return self.entropy < LOW * self.mean("entropy", WINDOW)

    def as_run(self) -> Run:
        metrics = {name: self.series(name) for name in self.columns if name != "step"}
        return Run(NAMES[self.method], RESULTS, metrics)


def about_its_trend(values: np.ndarray) -> np.ndarray:
    """What a straight line through them leaves."""
    steps = np.arange(len(values))
    return values - np.polyval(np.polyfit(steps, values, 1), steps)


def read_results(folder: Path) -> list[Result]:
    """Every run, and the beginning of a long one as a run of the comparison as well."""
    results = []
    for key, table in study.by_key(pq.read_table(folder / "metrics.parquet"), study.KEY).items():
        names = [name for name in table.column_names if name not in study.KEY]
        results.append(Result(*key, {name: table[name].to_numpy(zero_copy_only=False) for name in names}))
    for long in of(results, "long").values():
        for run in long:
            begun = run.columns["step"] <= study.STEPS
            cut = {name: values[begun] for name, values in run.columns.items()}
            results.append(Result("main", run.method, run.lr, run.seed, cut))
    order = {method: place for place, method in enumerate(NAMES)}
    return sorted(results, key=lambda result: (order[result.method], result.seed, float(result.lr)))


def read_covariance(folder: Path) -> dict[str, Distribution]:
    """Of each method the distribution over all recorded steps and seeds."""
    path = folder / "covariance.parquet"
    if not path.exists():  # no run of the comparison has finished yet
        return {}
    tables = {method: table for (method,), table in study.by_key(pq.read_table(path), ("method",)).items()}
    return {
        method: Distribution(*(tables[method][name].to_numpy() for name in ("covariance", "weight", "count")))
        for method in METHODS
        if method in tables
    }


def read_gradients(folder: Path) -> Gradients:
    path = folder / "gradients.parquet"
    rows = pq.read_table(path).to_pylist() if path.exists() else []
    return {(row["method"], row["quantity"]): (row["value"], row["error"]) for row in rows}


def of(results: list[Result], phase: str) -> Runs:
    found: Runs = {}
    for result in results:
        if result.phase == phase:
            found.setdefault(result.method, []).append(result)
    return found


def shown(values: list[float], scale: float = 1.0, digits: int = 1, sign: str = "") -> str:
    """Mean and 95% interval over seeds, by Student's t; of one seed, the value."""
    if not values:
        return "-"
    mean = f"{np.mean(values) * scale:{sign}.{digits}f}"
    if len(values) < 2:
        return mean
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) * scale
    return f"{mean} ± {half:.{digits}f}"


def differences(ours: list[Result], theirs: list[Result], quantity: str) -> list[float]:
    """Ours minus theirs, seed by seed."""
    other = {result.seed: getattr(result, quantity) for result in theirs}
    return [getattr(result, quantity) - other[result.seed] for result in ours if result.seed in other]


def p_value(values: list[float]) -> float:
    """Of the paired t-test by seed; nan for fewer than two seeds."""
    if len(values) < 2:
        return float("nan")
    return float(stats.ttest_1samp(values, 0).pvalue) if any(values) else 1.0  # scipy has none where all are 0


def against(ours: list[Result], theirs: list[Result], quantity: str, scale: float, digits: int) -> str:
    """The paired difference, and in parentheses its p."""
    values = differences(ours, theirs, quantity)
    p = p_value(values)
    return shown(values, scale, digits, "+") + (f" (p {said(p, 3)})" if p == p else "")


def said(p: float, digits: int) -> str:
    """Never 0."""
    return f"< {10**-digits}" if p < 10**-digits else f"{p:.{digits}f}"


def gain(runs: list[Result], start: list[float]) -> str:
    """Accuracy at the end above the starting model's mean, in points; its 95% interval is Welch's."""
    ends = [run.accuracy for run in runs]
    mean = f"{(np.mean(ends) - np.mean(start)) * 100:+.1f}"
    if len(ends) < 2:
        return mean
    low, high = stats.ttest_ind(ends, start, equal_var=False).confidence_interval()
    return f"{mean} ± {(high - low) / 2 * 100:.1f}"


def outcomes(results: Runs, start: list[float], name: str, title: str) -> Table:
    """Where every method ends; ``start`` are accuracies of the starting model."""
    rows = [
        [
            NAMES[method],
            ", ".join(sorted({run.lr for run in runs})),
            shown([run.accuracy for run in runs], 100),
            gain(runs, start),
            shown([run.reward for run in runs], digits=3),
            shown([run.drop for run in runs], 100),
            shown([run.entropy for run in runs], digits=3),
            shown([run.entropy_spread for run in runs], digits=4),
            shown([run.entropy_wobble for run in runs], digits=4),
            f"{sum(run.fell for run in runs)} / {sum(run.emptied for run in runs)} of {len(runs)}",
            f"{np.median([value for run in runs for value in run.series('seconds').values()]):.2f}",
        ]
        for method, runs in results.items()
    ]
    header = ["", "learning rate", "accuracy at the end, %", "above the start, points"]
    header += [f"reward, last {WINDOW} steps", "best to last, points"]
    header += ["entropy at the end, nats", "its spread", "about its trend", "collapsed: accuracy / entropy", "s/step"]
    apart = max(max(run.series("rollout_difference").values()) for runs in results.values() for run in runs)
    notes = [
        started(start),
        f"Of a token's probability in vLLM and in the trainer the largest difference in any step is {apart:.0e}.",
    ]
    return Table(name, title, header, rows, notes)


def starts(results: list[Result], phases: tuple[str, ...] = ("main", "ablation")) -> list[float]:
    """The starting model's accuracy, which every run measures before its first step."""
    return [result.series("accuracy")[0] for result in results if result.phase in phases]


def started(start: list[float]) -> str:
    return f"The model that all runs start from: {shown(start, 100)}% over {len(start)} validations."


def paired(results: Runs, reference: list[Result], name: str, title: str) -> Table:
    """Every method against one of them, seed by seed."""
    quantities = (
        ("accuracy", 100, 1), ("reward", 1, 3), ("drop", 100, 1),
        ("entropy", 1, 3), ("entropy_spread", 1, 4), ("entropy_wobble", 1, 4),
    )  # fmt: skip
    rows = [
        [NAMES[method], *(against(runs, reference, *quantity) for quantity in quantities)]
        for method, runs in results.items()
        if runs is not reference
    ]
    header = ["", "accuracy at the end, points", f"reward, last {WINDOW} steps", "best to last, points"]
    header += ["entropy at the end, nats", "its spread", "about its trend"]
    notes = [
        "Mean differences, paired by seed, with 95% confidence intervals. p-values are those of paired t-tests, not "
        "corrected for the number of tests."
    ]
    return Table(name, title, header, rows, [*notes, *same_batches(results, reference)])


def same_batches(results: Runs, reference: list[Result]) -> list[str]:
    """What the entropy about its trend is made of."""
    theirs = {run.seed: run.entropy_of_batches for run in reference}
    pairs = [
        (run.entropy_of_batches, theirs[run.seed])
        for runs in results.values()
        if runs is not reference
        for run in runs
        if run.seed in theirs
    ]
    if not pairs:
        return []
    spread = np.mean([np.std(ours) for ours, _ in pairs])
    together = np.mean([plots.correlation(*pair) for pair in pairs])
    return [
        f"From step to step, about a line through the second half, entropy varies by {spread:.4f} nats, which in means "
        f"of {WINDOW} independent steps leaves {spread / WINDOW**0.5:.4f}. It goes with that of the same seed's run of "
        f"{NAMES[reference[0].method]} by r = {together:.2f}, since the problems are the same: what there is about the "
        "trend is mostly how the batches differ, and whether a method adds to it cannot be seen."
    ]


def checkpoints(results: Runs, every: int, name: str, title: str) -> Table:
    """Accuracy and entropy along the way, as in the paper's Table 3."""
    steps = range(0, next(iter(results.values()))[0].steps + 1, every)
    rows = []
    for method, runs in results.items():
        accuracy = [shown([run.series("accuracy")[step] for run in runs], 100) for step in steps]
        entropy = [f" ({np.mean([run.mean('entropy', step) for run in runs]):.3f})" for step in steps[1:]]
        rows.append([NAMES[method], *map("".join, zip(accuracy, ["", *entropy], strict=True))])
    notes = [f"Accuracy in per cent, and in parentheses the mean entropy of the {WINDOW} steps before, in nats."]
    return Table(name, title, ["", *(f"step {step}" for step in steps)], rows, notes)


def course(results: Runs, window: int, name: str, title: str) -> Table:
    """Reward and entropy together, so that methods can be compared where they have learned as much."""
    ends = range(window, next(iter(results.values()))[0].steps + 1, window)
    rows = []
    for method, runs in results.items():
        rewards, entropies = (
            [np.mean([run.mean(quantity, end, window) for run in runs]) for end in ends]
            for quantity in ("reward", "entropy")
        )
        cells = [f"{reward:.3f} ({entropy:.3f})" for reward, entropy in zip(rewards, entropies, strict=True)]
        rows.append([NAMES[method], *cells])
    notes = [f"Mean reward and, in parentheses, mean entropy in nats of the {window} steps up to the one named."]
    return Table(name, title, ["", *(f"step {end}" for end in ends)], rows, notes)


def concentration(covariance: dict[str, Distribution]) -> Table:
    """How much of either side's covariance its most extreme tokens hold: the curves of Figure 3 at a few places."""
    shares = (0.01, 0.05, 0.2)
    rows = []
    for method, distribution in covariance.items():
        cells = []
        for sign in (1, -1):
            tokens = distribution.side(sign)
            held = np.interp(shares, tokens.tokens / tokens.tokens[-1], tokens.covariance / tokens.covariance[-1])
            cells += [f"{share * 100:.0f}" for share in held]
        rows.append([NAMES[method], *cells])
    header = ["", *(f"{sign}, top {share:.0%}" for sign in ("positive", "negative") for share in shares)]
    notes = ["Records of step 1 and every 50th; the loss writes none."]
    return Table(
        "concentration", "Share of a side's covariance that its most extreme tokens hold, %", header, rows, notes
    )


def forecasts(results: Runs) -> Table:
    """How the change of entropy goes with what the covariance forecast for it."""

    def correlation(run: Result, forecast: str, change: str) -> float:
        # A step's metrics hold the forecast for the change since the step before it, made from that one's batch.
        predicted, entropy = run.series(forecast), run.series("entropy")
        if change == "windows":  # from the middle of one to the middle of the next
            ends = range(WINDOW, run.steps - WINDOW + 1, WINDOW)
            between = [run.mean(forecast, end + WINDOW // 2 + 1) for end in ends]
            changes = [run.mean("entropy", end + WINDOW) - run.mean("entropy", end) for end in ends]
        else:
            over = {"next": 1, "around": 2}[change]
            steps = [step for step in predicted if step - over in entropy]
            between = [predicted[step] for step in steps]
            changes = [entropy[step] - entropy[step - over] for step in steps]
        return plots.correlation(np.array(between), np.array(changes))

    rows = []
    for method, runs in results.items():
        weighted = method.startswith("cw_grpo")
        cells = []
        for change in ("next", "around", "windows"):
            for forecast in ("entropy_forecast_grpo", "entropy_forecast"):
                values = [correlation(run, forecast, change) for run in runs]
                cells.append(shown(values, digits=2) if weighted or forecast != "entropy_forecast" else "")
        rows.append([NAMES[method], *cells])
    header = ["", "next step, A", "next step, w~ A", "around, A", "around, w~ A", "windows, A", "windows, w~ A"]
    notes = [
        "Correlation of a batch's -η Cov(log π, A), before and after reweighting, with a change of entropy. Next step: "
        "from that batch to the next. A batch whose entropy is high by chance lowers this change and may move its own "
        "covariance, which correlates them without any forecast. Around: from the batch before to the batch after, "
        "which is free of that.",
        f"Windows: from means of {WINDOW} steps to the next, {study.STEPS // WINDOW - 1} changes in a run. Clip-Cov's "
        "clipping is in no forecast.",
    ]
    grpo = results.get(BASELINE, [])
    if grpo:
        pace = np.mean([(run.mean("entropy", WINDOW) - run.entropy) / (run.steps - WINDOW) for run in grpo])
        chance = np.mean([np.std(run.entropy_of_batches) for run in grpo])
        notes.append(
            f"A step of {NAMES[BASELINE]} changes entropy by {pace:.5f} nats on average, while batches differ by "
            f"{chance:.4f}: that an r around single batches is near 0 says nothing of the forecast."
        )
    return Table("forecast", "Change of entropy against its first-order forecast, r", header, rows, notes)


def in_training(results: Runs) -> Table:
    """What a step of training sees of the weights, and of the clipping of gradients."""

    def mean(runs: list[Result], name: str, scale: float = 1.0, digits: int = 1) -> str:
        values = [list(run.series(name).values()) for run in runs]
        return shown([float(np.mean(of_run)) for of_run in values], scale, digits)

    rows = []
    for method, runs in results.items():
        norms = [np.array(list(run.series("grad_norm").values())) for run in runs]
        cells = [shown([float(np.mean(norm)) for norm in norms], digits=2)]
        cells += [shown([float(np.mean(norm > CLIP_GRAD)) for norm in norms], 100)]
        cells += [mean(runs, name, digits=3) for name in ("covariance_before", "covariance_after")]
        weighted = method.startswith("cw_grpo")
        cells += [mean(runs, name, 100) if weighted else "" for name in ("downweighted_share", "signal_share")]
        rows.append([NAMES[method], *cells])
    header = ["", "gradient norm", f"above {CLIP_GRAD}, where it is clipped, % of steps", "covariance"]
    header += ["after reweighting", "tokens with w < 0.5, %", "groups that are reweighted, %"]
    notes = [
        "Means over all steps of a run, with 95% intervals over seeds. A step's gradient norm is the mean of its two "
        "updates."
    ]
    return Table("training", "In training", header, rows, notes)


def estimate(measured: tuple[float, float], scale: float = 1.0, digits: int = 2) -> str:
    """A value and its 95% interval by Student's t, from the standard error over blocks."""
    value, error = measured
    half = stats.t.ppf(0.975, study.BLOCKS - 1) * error
    return f"{value * scale:.{digits}f} ± {half * scale:.{digits}f}"


def updates(gradients: Gradients) -> Table:
    """What gradients.py measured."""
    quantities = ("length", "slope", "slope_by_length")
    table = [
        [NAMES[method], *(estimate(gradients[method, quantity]) for quantity in quantities)]
        for method in NAMES
        if method != BASELINE and (method, "length") in gradients
    ]
    header = ["relative to GRPO's", "length of a batch's gradient", "rise of the expected reward along it"]
    header += ["the same, over the length"]
    notes = [
        f"{estimate(gradients[OURS, 'weak_tokens'], 100, 1)}% of the tokens have a kernel below one half under "
        f"{NAMES[OURS]}; they hold {estimate(gradients[OURS, 'weak_squares'], 100, 1)}% of the sum of squared "
        "gradients with respect to the logits of tokens.",
        f"As many of the least probable tokens hold {estimate(gradients[OURS, 'unlikely_squares'], 100, 1)}% of it; "
        f"{estimate(gradients[OURS, 'weak_unlikely'], 100, 1)}% of those with a low kernel are among them.",
        "Of the starting model; 95% intervals by jackknife over batches.",
    ]
    return Table("updates", "Where the first update points", header, table, notes)


def rates(results: Runs) -> Table:
    every = [run for runs in results.values() for run in runs]
    columns = sorted({run.lr for run in every}, key=float)
    rows = []
    for method, runs in results.items():
        found = {run.lr: study.score(list(run.series("accuracy").values())) for run in runs}
        best = max(found, key=found.__getitem__)
        cells = [f"{found[rate] * 100:.1f}" + "*" * (rate == best) if rate in found else "-" for rate in columns]
        rows.append([NAMES[method], *cells])
    notes = [
        "Accuracy in per cent, mean of steps 50 and 100, on problems that are used for nothing else: 1,024 answers, a "
        "standard error of about 1.6, so that neighbouring rates are not told apart.",
        "* is the method's best; at an edge of the grid the best may lie beyond it.",
        started(starts(every, ("search",))),
    ]
    for run in every:
        if run.fell:
            validations = ", ".join(f"{value * 100:.1f}" for value in run.series("accuracy").values())
            notes.append(f"{NAMES[run.method]} collapses in accuracy at {run.lr}: {validations}.")
    return Table("search", "Search for the learning rate", ["", *columns], rows, notes)


def figures(results: list[Result], covariance: dict[str, Distribution]) -> dict[str, plots.Figure]:
    """Name of the file -> figure."""
    drawn = {}
    both = [result for result in results if result.phase == "main" and result.method in (BASELINE, OURS)]
    for name, several in (("both", both), *((phase, [r for r in results if r.phase == phase]) for phase in PHASES)):
        runs = [result.as_run() for result in several]
        if runs:
            drawn[f"{name}-entropy"] = plots.curve(runs, "entropy", "Policy entropy", "nats", WINDOW)
            drawn[f"{name}-accuracy"] = plots.curve(runs, "accuracy", "Accuracy on held-out problems", "share")
    if covariance:
        named = {NAMES[method]: distribution for method, distribution in covariance.items()}
        drawn["contributions"] = plots.contributions(named)
        weighted = {
            NAMES[method]: distribution for method, distribution in covariance.items() if method.startswith("cw_grpo")
        }
        drawn["weights"] = plots.weight_curve(weighted)
    return drawn


def page(results: list[Result], covariance: dict[str, Distribution], gradients: Gradients, drawn: list[str]) -> str:
    search, main, long, ablation = (of(results, phase) for phase in ("search", "main", "long", "ablation"))
    start = starts(results)
    tables = []
    if main:
        tables += [outcomes(main, start, "main", "Methods, mean and 95% interval over seeds")]
        tables += [paired(main, main.get(BASELINE, []), "paired", f"Against {NAMES[BASELINE]}, paired by seed")]
        tables += [checkpoints(main, 50, "checkpoints", "Checkpoints, mean and 95% interval over seeds")]
    if ablation:
        several = {OURS: main.get(OURS, [])} | ablation
        tables += [outcomes(several, start, "ablation", f"{NAMES[OURS]} with a part changed, at its learning rate")]
        tables += [paired(several, several[OURS], "ablation-paired", f"Against {NAMES[OURS]}, paired by seed")]
    if long:
        tables += [outcomes(long, start, "long", "One long run of each method")]
        tables += [checkpoints(long, 200, "long-checkpoints", "Checkpoints of the long runs")]
        tables += [course(long, 100, "long-course", "Reward and entropy of the long runs")]
    if covariance:
        tables += [concentration(covariance)]
    tables += [
        table_1(NAMES[method], distribution)
        for method, distribution in covariance.items()
        if method in (BASELINE, OURS)
    ]
    if main:
        tables += [in_training(main), forecasts(main)]
    if gradients:
        tables += [updates(gradients)]
    if search:
        tables += [rates(search)]
    images = [f"![{name}]({name}.svg)" for name in drawn]
    if images:
        images.append(f"\nCurves of steps are means of {WINDOW}; bands are one standard deviation over seeds.")
    head = "# Results of the study\n\nWritten by `examples/study/report.py`; the README there says what was done.\n"
    return "\n".join([head, unfinished(results), *(table.markdown() for table in tables), *images, ""])


def unfinished(results: list[Result]) -> str:
    """A line while runs are still to come; nothing when all are there."""
    done, planned = len(results) - sum(map(len, of(results, "long").values())), study.planned()
    return f"**{done} of {planned} runs have finished; these are not the results yet.**\n\n" if done < planned else ""


def headline(results: list[Result], gradients: Gradients) -> str:
    """The section "In short": where methods end, and what a paired test of each with ours can tell."""
    runs = of(results, "main")
    if min(len(runs.get(method, [])) for method in (BASELINE, OURS)) < 2:
        return unfinished(results) + first_updates(gradients)
    title = f"{len(runs[BASELINE])} seeds of {runs[BASELINE][0].steps} steps"
    table = outcomes(runs, starts(results), "headline", title)
    left_out = [table.header.index(name) for name in ("its spread", "about its trend", "s/step")]
    header, *rows = ([cell for i, cell in enumerate(row) if i not in left_out] for row in [table.header, *table.rows])
    ends = Table(table.name, table.title, header, rows, table.notes[:1]).markdown()
    return f"{unfinished(results)}{ends}\n{verdict(runs)}\n{first_updates(gradients)}"


def first_updates(gradients: Gradients) -> str:
    if not gradients:
        return ""
    slope, by_length = (estimate(gradients[OURS, quantity]) for quantity in ("slope", "slope_by_length"))
    return (
        f"On the starting model the expected reward rises {slope} times as fast along gradients of {NAMES[OURS]} as "
        f"along those of {NAMES[BASELINE]}; when both are scaled to one length, {by_length} times. "
        f"{gradients[OURS, 'weak_tokens'][0]:.0%} of the tokens have a kernel below one half there, and they hold "
        f"{gradients[OURS, 'weak_squares'][0]:.0%} of the sum of squared gradients with respect to tokens' logits.\n\n"
    )


def verdict(runs: Runs) -> str:
    """Ours against each other method, in words that follow from the numbers alone."""
    others = [m for m in runs if m != OURS and len(differences(runs[OURS], runs[m], "accuracy")) > 1]
    tests = {(m, q): differences(runs[OURS], runs[m], q) for m in others for q in ("accuracy", "reward")}
    # Holm: the smallest p is multiplied by how many there are, the next by one less, ...
    order = sorted(tests, key=lambda test: p_value(tests[test]))
    adjusted = np.maximum.accumulate([p_value(tests[t]) * (len(order) - i) for i, t in enumerate(order)]).clip(max=1)
    p = dict(zip(order, adjusted, strict=True))
    lines = []
    for method in others:
        accuracy = (
            f"accuracy {shown(tests[method, 'accuracy'], 100, 1, '+')} points (p {said(p[method, 'accuracy'], 2)})"
        )
        reward = f"reward {shown(tests[method, 'reward'], 1, 3, '+')} (p {said(p[method, 'reward'], 2)})"
        found = [name for name in ("accuracy", "reward") if p[method, name] < 0.05]
        shows = f"a difference in {' and '.join(found)}" if found else "no difference is shown"
        lines.append(f"- {NAMES[OURS]} against {NAMES[method]}: {accuracy}, {reward}: {shows}.")
    intro = (
        "Differences are paired by seed, with 95% confidence intervals. "
        f"p-values are corrected for {len(order)} tests (Holm)."
    )
    return "\n".join([intro, "", *lines, ""])


def main() -> None:
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else RESULTS
    results, covariance, gradients = read_results(folder), read_covariance(folder), read_gradients(folder)
    write_page(folder, results, covariance, gradients)
    if folder == RESULTS:
        write_whole(README, with_headline(README.read_text(encoding="utf-8"), results, gradients))


def write_page(folder: Path, results: list[Result], covariance: dict[str, Distribution], gradients: Gradients) -> None:
    drawn = figures(results, covariance)
    for name, figure in drawn.items():
        plots.save(figure, folder / name, ["svg"])
    write_whole(folder / "README.md", page(results, covariance, gradients, list(drawn)))


def with_headline(text: str, results: list[Result], gradients: Gradients) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + headline(results, gradients) + END + after


if __name__ == "__main__":
    main()
