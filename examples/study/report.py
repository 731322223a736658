"""The study's page, its figures and the README's headline, from results/*.parquet alone.

python examples/study/report.py    # writes results/README.md, results/*.svg and the section in the main README
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import study
from scipy import stats

from cw_plugin.covariance import Bins, add_bins, side
from cw_plugin.files import write_whole
from cw_plugin.reports import plots
from cw_plugin.reports.runs import Run
from cw_plugin.reports.tables import Table, table_1

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
README = HERE.parents[1] / "README.md"
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

END_STEPS = 10  # what "at the end" averages over, for metrics of single steps
REWARD_STEPS = 25
FALL = 0.10  # accuracy below the run's best from which on a run has collapsed
LOW = 0.1  # entropy at the end, as a share of that at the start, below which it has
WINDOW = 10  # of the moving average in figures


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

    @property
    def accuracy(self) -> np.ndarray:
        """On held-out problems, every 50 steps from step 0 on."""
        return np.array(list(self.series("accuracy").values()))

    @property
    def entropy(self) -> np.ndarray:
        return np.array(list(self.series("entropy").values()))

    @property
    def final(self) -> float:
        return float(self.accuracy[-1])

    @property
    def drop(self) -> float:
        return float(self.accuracy.max() - self.accuracy[-1])

    @property
    def reward_end(self) -> float:
        """Over so many answers that it is surer than the validation; no problem comes twice in 948 steps."""
        return float(np.mean(list(self.series("reward").values())[-REWARD_STEPS:]))

    @property
    def entropy_end(self) -> float:
        return float(self.entropy[-END_STEPS:].mean())

    @property
    def entropy_spread(self) -> float:
        """Standard deviation over the second half of the steps."""
        return float(self.entropy[len(self.entropy) // 2 :].std())

    @property
    def collapsed(self) -> tuple[bool, bool]:
        """In accuracy, in entropy."""
        return self.drop > FALL, self.entropy_end < LOW * self.entropy[:END_STEPS].mean()

    @property
    def seconds(self) -> float:
        return float(np.median(list(self.series("seconds").values())))

    def correlation(self, forecast: str) -> float:
        change, predicted = self.series("entropy_change"), self.series(forecast)
        steps = sorted(set(change) & set(predicted))
        return plots.correlation(np.array([predicted[s] for s in steps]), np.array([change[s] for s in steps]))

    def as_run(self) -> Run:
        metrics = {name: self.series(name) for name in self.columns if name != "step"}
        return Run(NAMES[self.method], RESULTS, metrics)


def read_results(folder: Path) -> list[Result]:
    table = pq.read_table(folder / "metrics.parquet")
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    keys = list(zip(*(columns.pop(name) for name in ("phase", "method", "lr", "seed")), strict=True))
    results = []
    for key in dict.fromkeys(keys):
        chosen = np.array([other == key for other in keys])
        results.append(Result(*key, {name: values[chosen] for name, values in columns.items()}))
    order = {method: place for place, method in enumerate(NAMES)}
    return sorted(results, key=lambda result: (order[result.method], result.seed, float(result.lr)))


def of(results: list[Result], phase: str) -> dict[str, list[Result]]:
    """Runs of a phase by method."""
    found: dict[str, list[Result]] = {}
    for result in results:
        if result.phase == phase:
            found.setdefault(result.method, []).append(result)
    return found


def mean_and_interval(values: list[float], scale: float = 1.0, digits: int = 1) -> str:
    """Mean and 95% interval over seeds, by Student's t."""
    mean = np.mean(values) * scale
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) * scale
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def paired(ours: list[Result], theirs: list[Result]) -> tuple[str, float]:
    """Difference of final accuracy in points with its 95% interval, and p of the paired t-test, both by seed."""
    final = {result.seed: result.final for result in theirs}
    differences = [result.final - final[result.seed] for result in ours if result.seed in final]
    if not differences:
        return "-", float("nan")
    shown = mean_and_interval(differences, 100)
    p = float(stats.ttest_1samp(differences, 0).pvalue) if len(differences) > 1 else float("nan")
    return (shown if shown.startswith("-") else f"+{shown}"), p


def compared(results: dict[str, list[Result]], name: str, title: str) -> Table:
    rows = []
    for method, runs in results.items():
        against = ["", ""]
        if method != BASELINE:
            difference, p = paired(runs, results.get(BASELINE, []))
            against = [difference, f"{p:.3f}" if p == p else "-"]
        accuracy, entropy = (sum(run.collapsed[i] for run in runs) for i in (0, 1))
        rows.append(
            [
                NAMES[method],
                ", ".join(sorted({run.lr for run in runs})),
                mean_and_interval([run.final for run in runs], 100),
                *against,
                mean_and_interval([run.reward_end for run in runs], digits=3),
                mean_and_interval([run.drop for run in runs], 100),
                mean_and_interval([run.entropy_end for run in runs], digits=3),
                mean_and_interval([run.entropy_spread for run in runs], digits=3),
                f"{accuracy} / {entropy} of {len(runs)}",
                f"{np.median([run.seconds for run in runs]):.2f}",
            ]
        )
    header = ["", "learning rate", "accuracy at the end, %", "against GRPO, points", "p"]
    header += [f"training reward, last {REWARD_STEPS} steps", "best to last, points"]
    header += ["entropy at the end, nats", "its spread", "collapsed: accuracy / entropy", "s/step"]
    apart = max(max(run.series("rollout_difference").values()) for runs in results.values() for run in runs)
    notes = [f"Of a token's probability in vLLM and in the trainer the largest difference in any step is {apart:.0e}."]
    return Table(name, title, header, rows, notes)


def checkpoints(results: dict[str, list[Result]], every: int, name: str, title: str) -> Table:
    """Accuracy and entropy along the way, as in the paper's Table 3."""
    rows = []
    steps: list[int] = []
    for method, runs in results.items():
        steps = [step for step in runs[0].series("accuracy") if step and step % every == 0]
        cells = []
        for step in steps:
            accuracy = mean_and_interval([run.series("accuracy")[step] for run in runs], 100)
            before = np.mean([run.entropy[step - END_STEPS : step].mean() for run in runs])
            cells.append(f"{accuracy} ({before:.3f})")
        rows.append([NAMES[method], *cells])
    notes = [f"Accuracy in per cent, and in parentheses the mean entropy of the {END_STEPS} steps before, in nats."]
    return Table(name, title, ["", *(f"step {step}" for step in steps)], rows, notes)


def search_table(results: dict[str, list[Result]]) -> Table:
    rates = sorted({run.lr for runs in results.values() for run in runs}, key=float)
    rows = []
    for method, runs in results.items():
        found = {run.lr: f"{run.accuracy[-2:].mean() * 100:.1f}" for run in runs}
        rows.append([NAMES[method], *(found.get(rate, "-") for rate in rates)])
    notes = ["Accuracy in per cent, mean of the last two validations, on problems that are used for nothing else."]
    return Table("search", "Search for the learning rate", ["", *rates], rows, notes)


def forecast_table(results: dict[str, list[Result]]) -> Table:
    rows = [
        [
            NAMES[method],
            mean_and_interval([run.correlation("entropy_forecast_grpo") for run in runs], digits=2),
            mean_and_interval([run.correlation("entropy_forecast") for run in runs], digits=2),
        ]
        for method, runs in results.items()
    ]
    header = ["", "r, Cov before reweighting", "r, Cov after reweighting"]
    return Table("forecast", "Change of entropy from step to step against its first-order forecast", header, rows)


def concentration(covariance: dict[str, Bins]) -> Table:
    """How much of either side's covariance its most extreme tokens hold: the curves of Figure 3 at a few places."""
    shares = (0.01, 0.05, 0.2)
    rows = []
    for method, bins in covariance.items():
        cells = []
        for sign in (1, -1):
            tokens = side(bins, sign)
            held = np.interp(shares, tokens.tokens / tokens.tokens[-1], tokens.covariance / tokens.covariance[-1])
            cells += [f"{share * 100:.0f}" for share in held]
        rows.append([NAMES[method], *cells])
    header = ["", *(f"{sign}, top {share:.0%}" for sign in ("positive", "negative") for share in shares)]
    return Table("concentration", "Share of a side's covariance that its most extreme tokens hold, %", header, rows)


def verdict(results: dict[str, list[Result]]) -> str:
    """What the comparison shows, in words that follow from its numbers alone."""
    sentences = []
    for other in results:
        if other == OURS:
            continue
        difference, p = paired(results[OURS], results[other])
        shown = "the interval excludes 0" if p < 0.05 else "no difference is shown"
        sentences.append(f"- {NAMES[OURS]} against {NAMES[other]}: {difference} points, p = {p:.3f}; {shown}.")
    return "\n".join(sentences) + "\n"


def read_covariance(folder: Path) -> dict[str, Bins]:
    """Of each method the distribution over all recorded steps and seeds."""
    path = folder / "covariance.parquet"
    if not path.exists():  # no run of the comparison has finished yet
        return {}
    table = pq.read_table(path)
    found: dict[str, Bins] = {}
    for method in METHODS:
        rows = table.filter(pc.field("method") == method)
        if len(rows):
            names = [name for name in rows.column_names if name not in ("method", "seed")]
            found[method] = add_bins([{name: rows[name].to_numpy() for name in names}])
    return found


def figures(results: list[Result], covariance: dict[str, Bins]) -> dict[str, plots.Figure]:
    """Name of the file in results/ -> figure."""
    drawn = {}
    for phase in ("main", "long"):
        runs = [result.as_run() for result in results if result.phase == phase]
        if runs:
            drawn[f"{phase}-entropy"] = plots.curve(runs, "entropy", "Policy entropy", "nats", WINDOW)
            drawn[f"{phase}-accuracy"] = plots.curve(runs, "accuracy", "Accuracy on held-out problems", "share")
    if covariance:
        named = {NAMES[method]: bins for method, bins in covariance.items()}
        drawn["contributions"] = plots.contributions(named)
        drawn["weights"] = plots.weight_curve(named)
    return drawn


def page(results: list[Result], covariance: dict[str, Bins]) -> str:
    phases = {phase: of(results, phase) for phase in ("search", "main", "long", "ablation")}
    tables = []
    if phases["main"]:
        tables += [compared(phases["main"], "main", "Methods, mean and 95% interval over seeds")]
        tables += [checkpoints(phases["main"], 50, "checkpoints", "Checkpoints, mean and 95% interval over seeds")]
    if phases["ablation"]:
        several = {method: phases["main"].get(method, []) for method in (BASELINE, OURS)} | phases["ablation"]
        tables += [compared(several, "ablation", "What matters in the weights")]
    if phases["long"]:
        tables += [compared(phases["long"], "long", "One long run of each method")]
        tables += [checkpoints(phases["long"], 200, "long-checkpoints", "Checkpoints of the long runs")]
    if covariance:
        tables += [concentration(covariance)]
    tables += [table_1(NAMES[method], bins) for method, bins in covariance.items() if method in (BASELINE, OURS)]
    if phases["main"]:
        tables += [forecast_table(phases["main"])]
    if phases["search"]:
        tables += [search_table(phases["search"])]
    shown = [f"![{name}]({name}.svg)" for name in figures(results, covariance)]
    head = "# Results of the study\n\nWritten by `report.py`. What was done: [../README.md](../README.md).\n"
    head += "\n" + unfinished(results)
    return "\n".join([head, *(table.markdown() for table in tables), *shown, ""])


def unfinished(results: list[Result]) -> str:
    """A line while runs are still to come; nothing when all are there."""
    done, planned = len(results), study.planned()
    return f"**{done} of {planned} runs have finished; these are not the results yet.**\n\n" if done < planned else ""


def headline(results: list[Result]) -> str:
    """The section of the main README."""
    runs = of(results, "main")
    if len(runs.get(BASELINE, [])) < 2 or len(runs.get(OURS, [])) < 2:
        return unfinished(results)
    steps = runs[BASELINE][0].columns["step"].max()
    table = compared(runs, "headline", f"{len(runs[BASELINE])} seeds of {steps} steps")
    left_out = [table.header.index(name) for name in ("learning rate", "its spread", "s/step")]
    header, *rows = ([cell for i, cell in enumerate(row) if i not in left_out] for row in [table.header, *table.rows])
    short = Table(table.name, table.title, header, rows)
    return f"{unfinished(results)}{short.markdown()}\n{verdict(runs)}"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    results, covariance = read_results(folder), read_covariance(folder)
    write_page(folder, results, covariance)
    if folder == RESULTS:
        write_whole(README, with_headline(README.read_text(encoding="utf-8"), results))


def write_page(folder: Path, results: list[Result], covariance: dict[str, Bins]) -> None:
    for name, figure in figures(results, covariance).items():
        plots.save(figure, folder / name, ["svg"])
    write_whole(folder / "README.md", page(results, covariance))


def with_headline(text: str, results: list[Result]) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + headline(results) + END + after


if __name__ == "__main__":
    main()
