"""The boundary study's page and figures, and "In short" of the README here, from the runs that RESULTS has so far.

python examples/study/boundary/page.py            # results/README.md, results/*.svg, and README.md's "In short"
python examples/study/boundary/page.py RESULTS    # the page and the figures of a folder of one's own
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from plan import ABLATION, CENTRE, CONTROLS, LEARNING_RATES, LINES, MAP, METHODS, POINTS, SEEDS, UPDATES, Run, runs
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import report as study  # noqa: E402
from boundary import finished  # noqa: E402
from report import WINDOW, p_value, said  # noqa: E402

from cw_plugin.files import write_whole  # noqa: E402
from cw_plugin.reports import plots  # noqa: E402
from cw_plugin.reports.tables import Table  # noqa: E402

RESULTS, README = HERE / "results", HERE / "README.md"
BEGIN, END = "<!-- boundary: written by examples/study/boundary/page.py -->\n", "<!-- boundary: end -->\n"
NAMES = {"grpo": "GRPO", "clip_cov": "Clip-Cov", "cw_grpo": "CW-GRPO"}
KERNELS = {"width_2": "2 sigmas", "width_3": "3 sigmas", "width_4": "4 sigmas",
           "negative": "1 sigma on negative covariances only", "positive": "1 sigma on positive ones only"}  # fmt: skip
AXES = {"lr": "learning rate {}", "updates": "updates {}", "stale": "rollouts renewed every {} steps",
        "temperature": "temperature {}", "wrong": "{}% of rewards flipped", "bits": "rollouts with {} bits",
        "fillers": "filler tokens {}", "limit": "no limit on the gradient norm"}  # fmt: skip
EARLY = ("extreme_gradient_share", "extreme_balance")
EARLY_STEPS = 20
FEWEST = 3  # seeds; a setting with fewer is not tested
RESAMPLES = 1999
SURGE = 2.0  # times the entropy of the first steps, from which on it has surged
DEAD = 0.01  # accuracy below which a method has nothing left


class Result(study.Result):
    """What one run did: the study's outcomes. A run that is no longer finite has collapsed in both ways."""

    @property
    def failed(self) -> bool:
        return bool(self.columns["failed"][-1])

    @property
    def gain(self) -> float:
        return self.accuracy - self.series("accuracy")[0]

    @property
    def reward(self) -> float:
        return 0.0 if self.failed else super().reward

    @property
    def fell(self) -> bool:
        return self.failed or super().fell

    @property
    def emptied(self) -> bool:
        return self.failed or super().emptied

    @property
    def surged(self) -> bool:
        return not self.failed and self.entropy > SURGE * self.mean("entropy", WINDOW)


class Results(dict[Run, Result]):
    """The runs that have finished."""

    def of(self, point: Run, method: str) -> list[Result]:
        """The runs of a method at a setting."""
        wanted = (replace(point, method=method, seed=seed) for seed in SEEDS)
        return [self[run] for run in wanted if run in self]

    def differences(
        self, point: Run, ours: str = "cw_grpo", theirs: str = "grpo", what: str = "accuracy"
    ) -> list[float]:
        """Ours minus theirs, seed by seed."""
        return study.differences(self.of(point, ours), self.of(point, theirs), what)

    def means(self) -> dict[Run, float]:
        """CW-GRPO's accuracy less GRPO's, of every setting that has both."""
        return {point: float(np.mean(values)) for point in POINTS if (values := self.differences(point))}

    def kernels(self) -> dict[str, list[float]]:
        """Accuracy of each other kernel less that of the paper's, at the centre."""
        found = {method: self.differences(CENTRE, method, "cw_grpo") for method in ABLATION}
        return {method: values for method, values in found.items() if values}


def read(folder: Path) -> Results:
    def result(run: Run, rows: list[dict[str, float]]) -> Result:
        columns = {name: np.array([row[name] for row in rows], float) for name in rows[0]}  # None becomes nan
        return Result("boundary", run.method, run.lr, run.seed, columns)

    return Results({run: result(run, rows) for run, rows in finished(folder).items()})


def holm(p: Mapping, tests: int) -> dict:
    """p-values corrected for all the tests that are planned, whether or not they can be made yet. Without nan."""
    order = sorted((test for test in p if p[test] == p[test]), key=lambda test: p[test])
    corrected = np.maximum.accumulate([p[test] * (tests - i) for i, test in enumerate(order)]).clip(max=1)
    return dict(zip(order, map(float, corrected), strict=True))


def tested(values: Mapping, tests: int) -> dict:
    """The corrected p of each paired t-test."""
    return holm({name: p_value(differences) for name, differences in values.items()}, tests)


def name_of(point: Run) -> str:
    """What is changed from the centre."""
    changed = [
        words.format(value) for name, words in AXES.items() if (value := getattr(point, name)) != getattr(CENTRE, name)
    ]
    return ", ".join(changed) or "the centre"


def shown(values: list[float], scale: float = 1.0, digits: int = 1, sign: str = "") -> str:
    """As in the study, but without an interval where there are fewer than FEWEST seeds."""
    enough = values if len(values) >= FEWEST or not values else [float(np.mean(values))]
    return study.shown(enough, scale, digits, sign)


def collapses(found: Collection[Result]) -> str:
    return f"{sum(run.fell for run in found)} / {sum(run.emptied for run in found)} of {len(found)}"


def chance(p: float | None) -> str:
    """p in words; a dash without a test."""
    return said(p, 3) if p is not None and p == p else "-"


def settings(results: Results, points: list[Run], name: str, title: str) -> Table:
    p = tested({point: results.differences(point) for point in points}, len(points))
    rows = []
    for point in points:
        found = {method: results.of(point, method) for method in NAMES}
        if not any(found.values()):
            continue
        starts = [run.accuracy - run.gain for several in found.values() for run in several]
        row = [name_of(point), f"{np.mean(starts) * 100:.1f}"]
        row += [shown([run.accuracy for run in several], 100) for several in found.values()]
        row += [shown(results.differences(point), 100, 1, "+"), chance(p.get(point))]
        row += [shown(results.differences(point, what="reward"), 1, 3, "+")]
        ends = [[run.entropy for run in found[method]] for method in METHODS]
        row += [" / ".join(f"{np.mean(end):.3f}" if end else "-" for end in ends)]
        rows.append(row + [collapses(several) for several in found.values()])
    header = ["changed from the centre", "start, %", *(f"{name}, %" for name in NAMES.values())]
    header += ["CW-GRPO less GRPO, points", "p", "in reward", "entropy, GRPO / CW-GRPO"]
    header += [f"collapsed, {name}" for name in NAMES.values()]
    notes = [
        f"Accuracy after {CENTRE.steps} steps, mean and 95% interval over seeds. Differences are paired by seed. p is "
        f"corrected for {len(points)} tests (Holm). Collapsed: in accuracy / in entropy. Reward and entropy, "
        f"in nats, are means of the last {WINDOW} steps, the reward before any of it is flipped."
    ]
    return Table(name, title, header, rows, notes)


def ablation(results: Results) -> Table:
    values = results.kernels()
    p = tested(values, len(ABLATION))
    rows = [
        [
            name,
            *(shown([getattr(run, what) for run in results.of(CENTRE, method)], *how) for what, *how in
              (("accuracy", 100), ("reward", 1, 3), ("entropy", 1, 3))),
            shown(values.get(method, []), 100, 1, "+"),
            chance(p.get(method)),
        ]
        for method, name in {"grpo": "no kernel: GRPO", "cw_grpo": "1 sigma: CW-GRPO", **KERNELS}.items()
    ]  # fmt: skip
    header = ["kernel", "accuracy, %", f"reward, last {WINDOW} steps", "entropy, nats", "less the paper's, points", "p"]
    return Table("ablation", "Width and side of the kernel, at the centre", header, rows,
                 [f"p is corrected for {len(ABLATION)} tests (Holm)."])  # fmt: skip


def foretold(results: Results, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Of each setting, the mean of a metric over CW-GRPO's first steps, and the difference in accuracy in points."""
    outcome = results.means()
    early = [
        np.mean([run.mean(metric, EARLY_STEPS, EARLY_STEPS) for run in results.of(point, "cw_grpo")])
        for point in outcome
    ]
    return np.array(early), np.array(list(outcome.values())) * 100


def correlations(results: Results) -> dict[str, tuple[float, float, float, float]]:
    """Question (c): metric -> Spearman's correlation, its 95% bootstrap interval, and the corrected p."""

    def spearman(x: np.ndarray, y: np.ndarray) -> float:
        return plots.correlation(stats.rankdata(x), stats.rankdata(y))

    found, p = {}, {}
    for metric in EARLY if len(results.means()) > 4 else ():
        early, outcome = foretold(results, metric)
        rng = np.random.default_rng(0)
        r = spearman(early, outcome)
        drawn = [spearman(early[at], outcome[at]) for at in rng.integers(len(early), size=(RESAMPLES, len(early)))]
        shuffled = np.array([spearman(early, rng.permutation(outcome)) for _ in range(RESAMPLES)])
        p[metric] = (1 + (np.abs(shuffled) >= abs(r) - 1e-12).sum()) / (RESAMPLES + 1)
        found[metric] = (r, *map(float, np.nanquantile(drawn, (0.025, 0.975))))
    p = holm(p, len(EARLY))
    return {metric: (*values, p[metric]) for metric, values in found.items()}


def early(results: Results) -> Table:
    rows = [[f"`{metric}`", f"{r:.2f} ({low:.2f} to {high:.2f})", chance(p)]
            for metric, (r, low, high, p) in correlations(results).items()]  # fmt: skip
    header = [f"mean of CW-GRPO's first {EARLY_STEPS} steps", "correlation with the difference in accuracy", "p"]
    notes = [f"Spearman's, over settings, with a 95% bootstrap interval. p is corrected for {len(EARLY)} tests (Holm)."]
    return Table("early", "Do the first steps foretell the outcome?", header, rows, notes)


def first_wrong(folder: Path) -> Table:
    """What first_wrong.py has measured."""
    rows = pq.read_table(folder / "first_wrong.parquet").to_pylist()
    shares = ("tokens", "grpo", "cw_grpo")
    total = {name: sum(row[name] for row in rows[:3]) for name in shares}  # the others overlap these
    cells = [
        [row["kind"], *(f"{row[name] / total[name] * 100:.1f}" for name in shares),
         *(f"{row[name] / row['tokens']:.2f}" for name in ("surprisal", "entropy"))]
        for row in rows
    ]  # fmt: skip
    header = ["", "of all tokens, %", "of the squared gradient under GRPO, %", "under CW-GRPO, %"]
    header += ["surprisal, nats", "entropy at its position, nats"]
    notes = [
        f"Under CW-GRPO the sum of squares is {total['cw_grpo'] / total['grpo'] * 100:.1f}% of that under GRPO. "
        "Surprisal is -log π of the sampled token. It and the entropy are means. The fifths are those of a batch of 64 "
        "responses, and overlap the three kinds."
    ]
    return Table("first-wrong", "Where the gradient is, on the starting model", header, cells, notes)


def hosts(results: Results) -> Table:
    """The centre here, and the study's runs with verl up to the same step."""
    theirs = study.of(study.read_results(study.RESULTS), "main")
    rows = []
    for method in METHODS:
        verl = [run for run in theirs[method] if run.lr == CENTRE.lr]
        for host, several in (("TRL, here", results.of(CENTRE, method)), ("verl, the study", verl)):
            accuracies = [run.series("accuracy")[CENTRE.steps] for run in several]
            late = ([run.mean(what, CENTRE.steps) for run in several] for what in ("reward", "entropy"))
            rows.append([f"{NAMES[method]}, {host}", shown(accuracies, 100), *(shown(values, 1, 3) for values in late)])
    header = ["", f"accuracy after {CENTRE.steps} steps, %", f"reward, last {WINDOW} of these", "entropy, nats"]
    notes = ["Mean and 95% interval over seeds. Accuracy is of 1,024 answers with TRL and of 512 with verl."]
    return Table("hosts", "Do the hosts agree?", header, rows, notes)


def heat_map(results: Results) -> Figure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot(title="Accuracy, CW-GRPO less GRPO, points", xlabel="learning rate")
    axes.set_ylabel("updates from one batch")
    grid = np.full((len(UPDATES), len(LEARNING_RATES)), np.nan)
    for point, mean in results.means().items():
        if point in MAP:
            at = UPDATES.index(point.updates), LEARNING_RATES.index(point.lr)
            grid[at] = mean * 100
            both = [results.of(point, method) for method in METHODS]
            ends = " | ".join(f"{np.mean([run.accuracy for run in several]) * 100:.1f}" for several in both)
            fell = " | ".join(str(sum(run.fell for run in several)) for several in both)
            text = f"{grid[at]:+.1f}\n{ends}\ncollapsed {fell} of {len(both[0])}"
            axes.text(at[1], at[0], text, ha="center", va="center", fontsize=8)
    limit = np.nanmax([10, *np.abs(grid).flatten()])
    figure.colorbar(axes.imshow(grid, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto", alpha=0.7))
    axes.set_xticks(range(len(LEARNING_RATES)), LEARNING_RATES)
    axes.set_yticks(range(len(UPDATES)), map(str, UPDATES))
    return figure


def lines(results: Results) -> Figure:
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    every = figure.subplots(1, len(LINES), sharey=True)
    for axes, (name, points) in zip(every, LINES.items(), strict=True):
        axes.set_title(AXES[name].format("N"), fontsize=9)
        axes.set_xticks(range(len(points)), [f"{getattr(point, name):g}" for point in points])
        for place, (method, label) in enumerate(NAMES.items()):
            ends = [[run.accuracy * 100 for run in results.of(point, method)] for point in points]
            axes.plot([np.mean(values) if values else np.nan for values in ends], label=label, **plots._style(place))
            dots = [(x, value) for x, values in enumerate(ends) for value in values]
            axes.plot(*zip(*dots, strict=True), ".", color=plots._style(place)["color"]) if dots else None
    every[0].set_ylabel("accuracy at the end, %")
    every[-1].legend(frameon=False, fontsize=8)
    return figure


def scatter(results: Results) -> Figure:
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    for place, metric in enumerate(EARLY, 1):
        axes = figure.add_subplot(1, 2, place, xlabel=f"{metric}, CW-GRPO's first {EARLY_STEPS} steps")
        axes.set_ylabel("CW-GRPO less GRPO, points")
        axes.axhline(0, color="#999999", linewidth=0.8)
        axes.scatter(*foretold(results, metric), s=14, color="#00304d")
    return figure


def still_to_come(results: Results) -> str:
    done, planned = sum(run in results for run in runs()), len(runs())
    return f"**{done} of {planned} runs are in. The figures will change.**\n\n" if done < planned else ""


def unstable(results: Results) -> list[str]:
    """How many runs of each method collapsed, and in how many entropy surged."""
    says = []
    for method, name in NAMES.items():
        found = [run for point in POINTS for run in results.of(point, method)]
        fell, emptied, surged = (sum(getattr(run, what) for run in found) for what in ("fell", "emptied", "surged"))
        if found:
            says.append(
                f"- Of {len(found)} runs of {name}, {fell} collapsed in accuracy and {emptied} in entropy. In "
                f"{surged}, entropy ended above twice that of the first steps."
            )
    return says


def expected(results: Results) -> str:
    """Questions (a) and (b)."""
    differences = {point: results.differences(point) for point in POINTS}
    enough = {point: values for point, values in differences.items() if len(values) >= FEWEST}
    means, p = results.means(), tested(enough, len(POINTS))

    def listed(fits: Callable[[Run], bool]) -> str:
        points = [name_of(point) for point in means if fits(point)]
        return f"{len(points)} ({'; '.join(points)})" if points else "none"

    def lower(point: Run) -> bool:
        return p.get(point, 1) < 0.05 and means[point] < 0

    def higher(point: Run) -> bool:
        return p.get(point, 1) < 0.05 and means[point] > 0

    def prevented(point: Run) -> bool:
        return higher(point) and np.mean([run.gain for run in results.of(point, "grpo")]) < 0

    def end(point: Run) -> float:
        return max(float(np.mean([run.accuracy for run in results.of(point, method)])) for method in METHODS)

    alive = [point for point in means if end(point) >= DEAD]
    dead = f" In the other {len(means) - len(alive)}, both end below {DEAD:.0%}." if len(alive) < len(means) else ""
    none, six = (results.differences(LINES["fillers"][at]) for at in (0, -1))
    change = [ours - theirs for ours, theirs in zip(six, none, strict=False)]
    says = [
        f"- CW-GRPO's mean accuracy is below GRPO's in {sum(means[point] < 0 for point in alive)} of {len(alive)} "
        f"settings.{dead}",
        *unstable(results),
        f"- {len(enough)} of {len(POINTS)} settings have {FEWEST} seeds or more, so that they can be tested.",
    ]
    if enough:
        says += [
            f"- CW-GRPO is significantly worse in {listed(lower)}.",
            f"- CW-GRPO is significantly better in {listed(higher)}.",
            f"- CW-GRPO is significantly better, and GRPO ends below its start, in {listed(prevented)}.",
        ]
    if change:
        by = f"{shown(change, 100, 1, '+')} points (p {chance(p_value(change))})"
        says.append(f"- 6 filler tokens in each response change the difference by {by}.")
    return "\n".join(says)


def told_early(results: Results) -> str:
    """Question (c)."""
    found = [
        f"- `{metric}` in CW-GRPO's first {EARLY_STEPS} steps {'foretells' if p < 0.05 else 'is not shown to foretell'}"
        f" the difference: rank correlation {r:.2f} ({low:.2f} to {high:.2f}, p {chance(p)}), of {len(results.means())}"
        " settings."
        for metric, (r, low, high, p) in correlations(results).items()
    ]
    return "\n".join(found) or "- Too few settings are in."


def best(results: Results) -> str:
    """The map's best settings, and question (d)."""
    says = []
    for method in METHODS:
        ends = {point: [run.accuracy for run in results.of(point, method)] for point in MAP}
        short = sum(len(values) < FEWEST for values in ends.values())
        if short:
            says.append(f"- {NAMES[method]}: {len(MAP) - short} of {len(MAP)} settings of the map have {FEWEST} seeds.")
        else:
            top = max(ends, key=lambda point: np.mean(ends[point]))
            says.append(f"- The best setting of the map for {NAMES[method]}: {name_of(top)}, {shown(ends[top], 100)}%.")
    values = results.kernels()
    p = tested(values, len(ABLATION))
    for method, found in values.items():
        change = f"{shown(found, 100, 1, '+')} points (p {chance(p.get(method))})"
        says.append(f"- At the centre, a kernel of {KERNELS[method]} in place of the paper's: {change}.")
    return "\n".join(says)


def why(results: Results, folder: Path) -> str:
    """The measurement of first_wrong.py, and how often the gradient was scaled down."""
    first, after = first_wrong(folder).rows[:2]
    says = [
        f"- On the starting model the first wrong token of a response, {first[1]}% of all tokens, holds {first[2]}% of "
        f"the squared gradient under GRPO, and {first[3]}% under CW-GRPO. The tokens after it hold {after[2]}% and "
        f"{after[3]}%."
    ]
    above = {
        method: [value > CENTRE.limit for run in found for value in run.series("grad_norm").values()]
        for method in METHODS
        if (found := results.of(CENTRE, method))
    }
    if above:
        shares = [f"{np.mean(steps):.0%} of {NAMES[method]}'s steps" for method, steps in above.items()]
        says.append(f"- At the centre the gradient norm is above 1, and scaled down, in {' and '.join(shares)}.")
    for point in CONTROLS:
        if values := results.differences(point):
            changed = f"{shown(values, 100, 1, '+')} points"
            says.append(f"- CW-GRPO less GRPO with {name_of(point)}: {changed}.")
    return "\n".join(says)


def in_short(results: Results, folder: Path) -> str:
    """Sentences that follow from the numbers alone."""
    parts = {
        "What to expect": expected(results),
        "How to tell early": told_early(results),
        "What to set": best(results),
        "Why": why(results, folder),
    }
    return still_to_come(results) + "".join(f"**{title}**\n\n{says}\n\n" for title, says in parts.items())


def write_page(folder: Path, results: Results) -> None:
    drawn = {"map": heat_map(results), "lines": lines(results), "early": scatter(results)}
    for name, figure in drawn.items():
        plots.save(figure, folder / name, ["svg"])
    every = settings(results, POINTS, "settings", "Every setting")
    controls = settings(results, CONTROLS, "controls", "Without a limit on the gradient norm")
    tables = [every, ablation(results), early(results), first_wrong(folder), controls, hosts(results)]
    head = "# Results of the boundary study\n\nWritten by `page.py` in the folder above, whose README has the plan.\n"
    images = "\n".join(f"![{name}]({name}.svg)" for name in drawn)
    images += "\n\nEach cell of the map: the difference, the accuracy of GRPO | CW-GRPO, the collapsed runs.\n"
    write_whole(
        folder / "README.md", "\n".join([head, still_to_come(results) + images, "", *(t.markdown() for t in tables)])
    )


def with_headline(text: str, results: Results, folder: Path) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + in_short(results, folder) + END + rest.split(END)[1]


if __name__ == "__main__":
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else RESULTS
    results = read(folder)
    write_page(folder, results)
    if folder == RESULTS:
        write_whole(README, with_headline(README.read_text("utf-8"), results, folder))
