"""What became of each method, beside plain GRPO: a table, and at most three sentences."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from cw_plugin.reports.formats import Table, listed
from cw_plugin.reports.intervals import Difference, holm, over_seeds
from cw_plugin.reports.metrics import ENTROPY, NORM, REWARD
from cw_plugin.reports.runs import Run

FIRST = 100  # steps that the gradient norm is of: after them, the policies have gone different ways
LAST = 10  # steps at least that reward and entropy are of; else the last quarter
ENOUGH = 5  # seeds; with fewer, the report asks for more

Names = Mapping[str, Sequence[Run]]  # method -> its runs, in the page's order
Values = Mapping[str, pd.Series]  # method -> a value for each run, the seed in the index


def compare(names: Names, scores: Values | None = None, where: str = "") -> tuple[Table, list[str]]:
    """The table of differences; and what it shows, what it does not, and which run would decide.

    Args:
        scores: of each method the accuracy of each run, where it was evaluated; else that of the last validation which
            all runs have counts.
        where: what the scores are of.
    """
    grpo = [name for name, runs in names.items() if all(run.is_grpo for run in runs) and (runs or name == "GRPO")]
    reference = next(iter([*grpo, *names]), "")
    others = [name for name in names if name != reference]
    rows = [*_accuracy(names, scores, where), *_of_steps(names)]
    found = {
        (word, name): over_seeds(values[name], values[reference])
        for word, _, values in rows
        for name in others
        if name in values and reference in values
    }
    corrected = holm({key: difference.p for key, difference in found.items()})
    shown = {key for key, p in corrected.items() if p < 0.05}
    cells = [
        {"": title}
        | {name: _mean(word, values[name]) if name in values else None for name in names}
        | {f"{name} less {reference}": _cell(word, found.get((word, name)), (word, name) in shown) for name in others}
        | {"seeds": " and ".join(dict.fromkeys(str(len(values[name])) for name in names if name in values))}
        for word, title, values in rows
    ]
    notes = []
    if corrected:
        paired = {difference.paired for difference in found.values()}
        how = "paired where the seeds are the same" if len(paired) > 1 else "paired" if True in paired else "Welch's"
        notes = [f"Brackets: 95% interval over seeds, by a t-test ({how})."]
        notes.append(f"* p < 0.05, corrected for {len(corrected)} tests (Holm); an interval alone is not corrected.")
    table = Table("comparison", "Differences between the methods", pd.DataFrame(cells), notes)
    return table, _sentences(names, grpo, found, shown)


def _accuracy(names: Names, scores: Values | None, where: str) -> list[tuple[str, str, Values]]:
    if scores is None:
        each = [run.accuracy for runs in names.values() for run in runs]
        common = set.intersection(*(set(accuracy.index) for accuracy in each)) if each else set()
        last = max(common, default=0)
        if last <= 0:
            return []
        scores = {name: _by_seed(runs, [run.accuracy[last] for run in runs]) for name, runs in names.items() if runs}
        where = f"step {last}"
    return [("accuracy", f"Accuracy, {where}", scores)]


def _of_steps(names: Names) -> list[tuple[str, str, Values]]:
    """Reward and entropy at the end, and the logarithm of the gradient norm at the beginning, over shared steps."""
    found: list[tuple[str, str, Values]] = []
    for word, metric in (("reward", REWARD), ("entropy", ENTROPY), ("gradient norm", NORM)):
        series = {name: [run.series(metric) for run in runs] for name, runs in names.items()}
        ends = [max(values.index) for several in series.values() for values in several if len(values)]
        if not ends:
            continue
        end = min(ends)
        begin, end = (0, min(end, FIRST)) if metric == NORM else (max(end - max(end // 4, LAST), 0), end)
        means = {
            name: _by_seed(names[name], [_average(values.loc[begin + 1 : end], metric == NORM) for values in several])
            for name, several in series.items()
        }
        steps = f"steps {begin + 1} to {end}" if end > begin + 1 else f"step {end}"
        found.append((word, f"{word.capitalize()}, {steps}", {name: each for name, each in means.items() if len(each)}))
    return found


def _average(values: pd.Series, logarithms: bool) -> float:
    return float((np.log(values[values > 0]) if logarithms else values).mean())


def _by_seed(runs: Sequence[Run], values: Sequence[float]) -> pd.Series:
    return pd.Series(values, [run.seed for run in runs], dtype=float).dropna()


def _mean(word: str, values: pd.Series) -> str:
    mean = float(values.mean())
    return f"{mean:.1%}" if word == "accuracy" else _factor(mean) if word == "gradient norm" else f"{mean:.3f}"


def _factor(logarithm: float) -> str:
    return f"{math.exp(logarithm):#.3g}".rstrip(".")  # three significant digits


def _cell(word: str, found: Difference | None, shown: bool) -> str | None:
    if found is None:
        return None
    unit = {"accuracy": " points", "gradient norm": " times"}.get(word, "")

    def tell(value: float) -> str:
        return _factor(value) if word == "gradient norm" else f"{100 * value:+.1f}" if unit else f"{value:+.3f}"

    interval = f" [{tell(found.low)}, {tell(found.high)}]" if found.low == found.low else ""
    return f"{tell(found.value)}{unit}{interval}{'*' * shown}"


def _sentences(
    names: Names, grpo: Sequence[str], found: Mapping[tuple[str, str], Difference], shown: Collection[tuple[str, str]]
) -> list[str]:
    runs = [run for several in names.values() for run in several]
    if not names:
        return ["Nothing that was trained is here, so there is nothing to compare."]
    if not grpo or len(grpo) == len(names):
        verb = "is" if len(names) == 1 else "are"
        only = f"Only {listed([*names])} {verb} here, so nothing shows whether the weights help."
        return [only, _missing(runs, "CW-GRPO" if grpo else "GRPO")]
    texts = []
    if shown and len(names) > 2:
        texts.append(f"{len(shown)} of {len(found)} differences to {grpo[0]} are shown; a star marks them.")
    elif shown:
        sides = {
            side: [word for word, name in found if (word, name) in shown and (found[word, name].value > 0) == up]
            for side, up in (("lower", False), ("higher", True))
        }
        (name,) = (name for name in names if name != grpo[0])
        texts.append(
            f"{name} is {', and '.join(f'{side} in {listed(words)}' for side, words in sides.items() if words)}."
        )
    fewest = min(len(several) for several in names.values())
    if fewest == 1:
        texts.append("One run does not tell methods apart: another seed may turn each difference around.")
    elif unclear := [word for word, name in found if (word, name) not in shown and len(names) == 2]:
        texts.append(f"No difference is shown in {listed(unclear)}.")
    elif fewest and not shown:
        texts.append("No difference is shown.")
    if 0 < fewest < ENOUGH and len(shown) < len(found):
        used = {run.seed for run in runs}
        free = [str(seed) for seed in range(1, 100) if seed not in used][:2]
        key = "data.seed" if _host(runs) == "verl" else "seed"
        texts.append(f"Train {listed([*names])} with more seeds, such as {key}={free[0]} and {free[1]}.")
    return texts


def _missing(runs: Sequence[Run], method: str) -> str:
    """The run that would decide, where GRPO or CW-GRPO is not here."""
    how: dict[tuple[Any, str], str] = {
        ("verl", "GRPO"): "with +algorithm.cw_grpo.kernel=none",
        ("verl", "CW-GRPO"): "with algorithm.adv_estimator=cw_grpo, without kernel=none",
        ("TRL", "GRPO"): 'with cw_kernel="none"',
        ("TRL", "CW-GRPO"): 'with a CWGRPOTrainer, without cw_kernel="none"',
    }
    option = how.get((_host(runs), method), f"{'with' if method == 'GRPO' else 'without'} the option kernel=none")
    seeds = sorted({str(run.seed) for run in runs if run.seed == run.seed})
    seed = f"with seed {listed(seeds)}" if 0 < len(seeds) < 4 else "with the same seeds"
    return f"Train {method} {seed}: the same command, another folder, {option}."


def _host(runs: Sequence[Run]) -> str | None:
    hosts = {
        "verl" if "algorithm.adv_estimator" in r.config else "TRL" if "cw_kernel" in r.config else None for r in runs
    }
    return hosts.pop() if len(hosts) == 1 else None
