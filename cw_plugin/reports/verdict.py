"""What the runs of a page can tell, in sentences with their numbers, and which run would tell more."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cw_plugin.reports.curves import CURVES
from cw_plugin.reports.evaluations import Evaluation
from cw_plugin.reports.plots import accuracy_metrics
from cw_plugin.reports.runs import Run
from cw_plugin.reports.seeds import MODEL, is_grpo, other_differences, seed_of, setting
from cw_plugin.reports.statistics import (
    FEW,
    Curve,
    Difference,
    Values,
    between_lines,
    between_questions,
    between_seeds,
    between_steps,
    rise,
)
from cw_plugin.reports.tables import benchmarks_of, last_parts, seed_scores, shown_benchmark

BEFORE = "before training"  # the model that a single method is compared with
FIRST = 100  # steps that the gradient norm and the reward's rise are of
REWARD, ENTROPY, NORM = (CURVES[name][0] for name in ("reward", "entropy", "grad_norm"))

Names = Mapping[str, Sequence[Run]]  # method -> its runs, in the page's order


class Point(NamedTuple):
    """A word, what is said under it, and what follows from it for each method."""

    word: str
    text: str
    conclusions: Sequence[str] = ()


@dataclass(frozen=True)
class Verdict:
    """The conclusion comes first."""

    points: Sequence[Point]

    def markdown(self) -> str:
        return "\n".join(["## Verdict", "", *(f"- **{point.word}.** {point.text}" for point in self.points), ""])

    def html(self) -> str:
        items = (f"<dt>{html.escape(point.word)}</dt><dd>{html.escape(point.text)}</dd>" for point in self.points)
        return "\n".join(["<section class=verdict><h2>Verdict</h2><dl>", *items, "</dl></section>"])


@dataclass(frozen=True)
class _Quantity:
    """What is compared, and how its values and differences are written."""

    word: str
    show: Callable[[float], str] = "{:.3f}".format
    tell: Callable[[float], str] = "{:+.3f}".format
    relation: str = "against"
    intro: str = "Mean of"

    def compare(
        self,
        intro: str,
        values: Mapping[str, Values],
        reference: str,
        single: Callable[[str], Difference | None] = lambda name: None,
    ) -> list[Point]:
        """Every method's mean over its runs, and its difference to the reference.

        Args:
            single: compares the only run of a method with that of the reference, or with 0 if there is no other.
        """
        means = {name: float(np.mean([value for _, value in ours])) for name, ours in values.items()}
        texts, conclusions = [], []
        for name, ours in values.items():
            texts.append(f"{name} {self.show(means[name])}")
            if len(values) == 1 and (found := between_seeds(ours) if len(ours) > 1 else single(name)):
                texts[-1] += f" [{self.show(found.low)}, {self.show(found.high)}] ({found.sample})"
            if name == reference or reference not in values:
                continue
            told = f"{self.tell(means[name] - means[reference])} {self.relation} {reference} (no interval)"
            judged = ""
            repeated = min(len(ours), len(values[reference])) > 1
            if found := between_seeds(ours, values[reference]) if repeated else single(name):
                interval = f"[{self.tell(found.low)}, {self.tell(found.high)}]"
                told = f"{self.tell(found.value)} {interval} {self.relation} {reference} ({found.sample})"
                judged = "higher" if found.low > 0 else "lower" if found.high < 0 else "no difference is shown"
            texts[-1] += f", {told}: {judged}".rstrip(": ")
            of_methods = found is not None and found.of_methods
            where, word = ("", self.word) if of_methods else ("In these runs, ", self.word.lower())
            if judged in ("higher", "lower"):
                conclusions.append(f"{where}{word} is {judged} with {name}: {told}.")
            elif found:
                conclusions.append(f"No difference in {self.word.lower()} is shown: {name} {told}.")
            else:
                conclusions.append(f"{self.word}: {name} {told}.")
            if not repeated:
                conclusions.append("One run does not tell methods apart: another seed may turn this around.")
        return [Point(self.word, f"{intro}: {'; '.join(texts)}.", conclusions)] if texts else []

    def of_steps(
        self,
        names: Names,
        metric: str,
        reference: str,
        of: Callable[[Curve], float] = lambda curve: float(curve[1].mean()),
        between: Callable[[Curve, Curve | None], Difference | None] = between_steps,
        transform: Callable[[np.ndarray], np.ndarray] = np.asarray,
        first: bool = False,
    ) -> list[Point]:
        """Compare by the first steps, or by the last quarter (at least ten) of the steps that all runs have."""
        logged = [(name, run) for name, several in names.items() for run in several if run.metrics.get(metric)]
        end = min((max(run.metrics[metric]) for _, run in logged), default=0)
        begin, end = (0, min(end, FIRST)) if first else (max(end - max(end // 4, FEW), 0), end)
        curves, values = defaultdict(list), defaultdict(list)
        for name, run in logged:
            steps, series = run.series(metric)
            with np.errstate(divide="ignore"):
                series = transform(series)
            chosen = (begin < steps) & (steps <= end) & np.isfinite(series)
            curve = steps[chosen], series[chosen]
            if chosen.any() and np.isfinite(value := of(curve)):
                curves[name].append(curve)
                values[name].append((seed_of(run.config), value))

        def single(name: str) -> Difference | None:
            theirs = curves[reference] if name != reference else []
            alone = len(curves[name]) == 1 and len(theirs) < 2
            return between(curves[name][0], theirs[0] if theirs else None) if alone else None

        span = f"steps {begin + 1} to {end}" if end > begin + 1 else f"step {end}"
        return self.compare(f"{self.intro} {span}", values, reference, single)


def _factor(logarithm: float) -> str:
    return f"{np.exp(logarithm):#.3g}".rstrip(".")  # three significant digits


_ACCURACY = _Quantity("Accuracy", "{:.1%}".format, lambda value: f"{100 * value:+.1f}", "points against")
_NORM = _Quantity("Gradient norm", _factor, _factor, "times that of", "Geometric mean of")
_RISE = _Quantity("Reward's rise", "{:+.3f}".format, intro="By a straight line through")


def verdict(runs: Sequence[Run], evaluations: Sequence[Evaluation]) -> Verdict:
    """Compare methods with plain GRPO, or with the first one if none is GRPO.

    Args:
        runs: with their configurations, which tell GRPO from other methods, and seeds.
        evaluations: one for each name, as ``tables.at_step`` gives them.
    """
    methods = dict.fromkeys([*(run.name for run in runs), *(each.name for each in evaluations if each.step)])
    names = {name: [run for run in runs if run.name == name] for name in methods}
    grpo = [name for name, several in names.items() if all(map(is_grpo, several or [Run(name, Path(), {})]))]
    reference = next(iter([*grpo, *names]), "")
    accuracy = _graded(evaluations, names, reference) or _logged(names, reference)
    reward = _Quantity("Reward").of_steps(names, REWARD, reference)
    points = [
        *accuracy,
        *reward,
        *_Quantity("Entropy").of_steps(names, ENTROPY, reference),
        *_course(names),
        *_NORM.of_steps(names, NORM, reference, transform=np.log, first=True),
        *_RISE.of_steps(names, REWARD, reference, rise, between_lines, first=True),
        *_weights(names),
    ]
    conclusions = [text for point in (accuracy or reward) for text in point.conclusions if len(names) > 1]
    short = " ".join(dict.fromkeys([*_differ(runs), *conclusions, *_next(names, grpo)]))
    if not (short or points):
        short = "Nothing that was trained is here, so there is nothing to compare."
    return Verdict([*([Point("In short", short)] if short else []), *_compared(names, grpo), *points])


def _differ(runs: Sequence[Run]) -> list[str]:
    """A warning, if the methods differ in more than the method."""
    found = other_differences(run.config for run in runs)
    texts = [f"{key} ({' and '.join(dict.fromkeys(map(str, values)))})" for key, values in found.items()]
    if len(texts) > 2:
        texts[2:] = [f"{len(texts) - 2} more setting{'s' * (len(texts) > 3)}"]
    text = f"The methods also differ in {', '.join(texts)}, so differences are not those of the weights alone."
    return [text] if texts else []


def _next(names: Names, grpo: Sequence[str]) -> list[str]:
    """The run that would tell more."""
    seeds = dict.fromkeys(seed for several in names.values() for seed in _seeds(several))
    same = f"with the same seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}".rstrip()
    question = "What is here does not show whether the weights help."
    if names and not grpo:
        command = "the same command with +algorithm.cw_grpo.kernel=none (in TRL --cw_kernel none) and another folder"
        return [f"{question} Train GRPO {same}: {command}."]
    if grpo and len(grpo) == len(names):
        command = "the same command with algorithm.adv_estimator=cw_grpo (in TRL a CWGRPOTrainer), without kernel=none"
        command += ", and with another folder"
        return [f"{question} Train CW-GRPO {same}: {command}."]
    single = " and ".join(name for name, several in names.items() if len(several) == 1)
    more = "two more seeds at least, the same for all (data.seed; SEED=2 in front of this repository's scripts)"
    return [f"To tell the methods apart, train {single} with {more}."] if single else []


def _seeds(runs: Sequence[Run]) -> list[str]:
    return [str(seed) for run in runs if (seed := seed_of(run.config)) is not None]


def _compared(names: Names, grpo: Sequence[str]) -> list[Point]:
    texts = []
    for name, several in names.items():
        seeds = _seeds(several)
        known = f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" if len(seeds) == len(several) else "seed not known"
        lengths = dict.fromkeys(max(max(series) for series in run.metrics.values()) for run in several)
        steps = f"{' or '.join(map(str, lengths))} step{'s' * ([*lengths] != [1])}"
        many = f"{len(several)} runs, " * (len(several) > 1)
        texts += [f"{name} ({many}{known}, {steps})"] if several else []
    models = dict.fromkeys(setting(run.config, MODEL) for several in names.values() for run in several)
    text = "; ".join([*texts, *(f"model {last_parts(model)}" for model in models if model)]) + "."
    if len(names) > 1 and not grpo:
        text += f" None is known to be plain GRPO; {next(iter(names))} is the reference."
    text += " Brackets are 95% intervals. Those by seed compare methods. Those by question or by step compare only "
    text += "these runs, and another seed may differ."
    return [Point("Compared", text)] if texts else []


def _graded(evaluations: Sequence[Evaluation], names: Names, reference: str) -> list[Point]:
    """Accuracy from answers; that of a single method against the untrained model."""
    untrained = [each.name for each in evaluations if each.name not in names]
    reference = untrained[0] if untrained and len(names) == 1 else reference
    shown = {each.name: each for each in evaluations if each.name in (*names, reference)}
    columns = [name for name in benchmarks_of(evaluations) if all(name in each.accuracy for each in shown.values())]
    values = {name: seed_scores(each, columns) for name, each in shown.items() if columns}

    def single(name: str) -> Difference | None:
        if name == reference or reference not in shown:
            return None
        return between_questions(*([shown[each].accuracy[c] for c in columns] for each in (name, reference)))

    steps = " and ".join(dict.fromkeys(str(each.step) for each in shown.values() if each.step))
    intro = f"On {', '.join(map(shown_benchmark, columns))}, step {steps}"
    return _ACCURACY.compare(intro, values, reference, single)


def _logged(names: Names, reference: str) -> list[Point]:
    """Accuracy of the last validation that all runs have, where its answers were not kept."""
    runs = [(name, run) for name, several in names.items() for run in several]
    metrics = accuracy_metrics([run for _, run in runs])
    steps = [set(run.metrics.get(each, {})) for _, run in runs for each in metrics]
    common = set.intersection(*steps) if steps else set()
    if not (last := max(common, default=0)):
        return []

    def at(step: int) -> list[tuple[Any, float]]:
        return [(seed_of(run.config), float(np.mean([run.metrics[each][step] for each in metrics]))) for _, run in runs]

    values = defaultdict(list)
    if len(names) == 1 and 0 in common:
        reference, values[BEFORE] = BEFORE, at(0)
    for (name, _), value in zip(runs, at(last), strict=True):
        values[name].append(value)
    return _ACCURACY.compare(f"On validation, step {last}", values, reference)


def _band(run: Run) -> tuple[float, float]:
    low, high = (setting(run.config, f"algorithm.cw_grpo.entropy_{end}") for end in ("low", "high"))
    return low if isinstance(low, float | int) else -np.inf, high if isinstance(high, float | int) else np.inf


def _course(names: Names) -> list[Point]:
    """Where the entropy went, and in how many steps it was outside the band of its run."""
    texts = []
    for name, several in names.items():
        logged = [(*point, *_band(run)) for run in several for point in zip(*run.series(ENTROPY), strict=True)]
        steps, values, low, high = np.array([each for each in logged if np.isfinite(each[1])]).reshape(-1, 4).T
        if len(set(steps)) < 2:
            continue
        first, last = np.quantile(steps, (0.1, 0.9))
        texts.append(f"{name} goes from {values[steps <= first].mean():.3f} to {values[steps >= last].mean():.3f} nats")
        if np.isfinite([low, high]).any():
            bands = " or ".join(dict.fromkeys(map("{:g} to {:g}".format, low, high)))
            out = steps[(values < low) | (values > high)]
            texts[-1] += f" and is outside its band ({bands}) in {len(out)} of {len(steps)} steps"
            texts[-1] += f", first in step {min(out):.0f}" if len(out) else ""
    return [Point("Course of entropy", f"First to last tenth of the steps: {'; '.join(texts)}.")] if texts else []


def _weights(names: Names) -> list[Point]:
    """What the weights act on, and how often those tokens occur in good and in bad responses."""
    keys = ("downweighted_share", "extreme_gradient_share", "extreme_balance")
    shares, balances = [], []
    for name, several in names.items():
        logged = [np.array([value for run in several for value in run.series(f"cw_grpo/{key}")[1]]) for key in keys]
        tokens, held, balance = (values[np.isfinite(values)] for values in logged)
        kept = all(map(is_grpo, several))
        share = [f"are {tokens.mean():.1%} of the tokens"] if len(tokens) and not kept else []
        fate = "with their full weight" if kept else "before the weights act"
        share += [f"hold {held.mean():.0%} of the squared gradient {fate}"] if len(held) else []
        shares += [f"under {name} they {' and '.join(share)}"] if share else []
        balance = balance[balance != 0]  # 0 in a step without extreme tokens
        balances += [f"{np.median(balance):.2f} under {name}"] if len(balance) >= FEW else []
    texts = [f"Extreme tokens have a Gaussian kernel below 0.5: {'; '.join(shares)}."] if shares else []
    if balances:
        texts.append(
            f"Their balance (sum of c over sum of |c|, median over steps) is {', '.join(balances)}: near 0, they occur "
            "about as often in good as in bad responses; near 1 or -1, they stand on one side."
        )
    return [Point("Weights", " ".join(texts))] if texts else []
