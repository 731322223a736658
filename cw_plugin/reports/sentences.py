"""What a comparison shows, in sentences: what is significant, what is broken, and which runs would decide."""

from collections.abc import Iterator

import pandas as pd

from cw_plugin.reports.comparison import Broken, Comparison
from cw_plugin.reports.formats import listed
from cw_plugin.reports.runs import Run

ENOUGH = 5  # seeds; with fewer, the report asks for more


def sentences(comparison: Comparison) -> list[str]:
    """The most important first."""
    broken = [_broken(each, comparison) for each in comparison.broken]
    if len(set(comparison.plain.values())) < 2:
        return [*broken, *_one_method(comparison)]
    return [*broken, *_differences(comparison)]


def restarts(runs: list[Run]) -> Iterator[str]:
    """A sentence for each run that has steps of several starts."""
    for run in runs:
        if run.repeated:
            steps = _steps(run.repeated[0], run.repeated[-1])
            yield f"{run.path} repeated {steps} after a restart; the page shows them as trained last."


def _steps(first: int, last: int) -> str:
    return f"steps {first} to {last}" if last > first else f"step {last}"


def _broken(run: Broken, comparison: Comparison) -> str:
    is_one_of_several = comparison.runs.get(run.method, 0) > 1 and not pd.isna(run.seed)
    who = f"{run.method} with seed {run.seed}" if is_one_of_several else run.method
    return f"{who} broke down: from step {run.step} of {run.last} on, its {listed(run.outcomes)} is NaN or infinite."


def _one_method(comparison: Comparison) -> list[str]:
    names = list(comparison.plain)
    if not names:
        return ["Nothing that was trained is here: no method can be compared."]
    is_plain = comparison.plain.get(comparison.reference, False)
    missing, how = ("CW-GRPO", "with the weights") if is_plain else ("GRPO", "with kernel=none")
    verb = "is" if len(names) == 1 else "are"
    return [
        f"Only {listed(names)} {verb} here, so nothing shows whether the weights help.",
        f"Train {missing} with the same seeds: the same command, another folder, {how}.",
    ]


def _differences(comparison: Comparison) -> list[str]:
    compared = [(outcome, name) for outcome in comparison.outcomes for name in outcome.differences]
    significant = [(outcome, name) for outcome, name in compared if name in outcome.significant]
    unclear = [outcome.name for outcome, name in compared if name not in outcome.significant]
    fewest = min(comparison.runs.values())
    said = []
    if len(comparison.plain) > 2 and compared:
        reference = comparison.reference
        said.append(f"{len(significant)} of {len(compared)} differences to {reference} are significant (star).")
    elif significant:
        name = significant[0][1]
        lower = [outcome.name for outcome, _ in significant if outcome.differences[name].value < 0]
        higher = [outcome.name for outcome, _ in significant if outcome.name not in lower]
        sides = [f"{side} in {listed(words)}" for side, words in (("lower", lower), ("higher", higher)) if words]
        said.append(f"{name} is {', and '.join(sides)}.")
    if fewest == 1 and compared:
        said.append("One run does not tell methods apart: another seed may change the sign of each difference.")
    elif unclear and len(comparison.plain) == 2:
        said.append(f"No difference in {listed(unclear)} is significant.")
    if 0 < fewest < ENOUGH and unclear:
        free = [str(seed) for seed in range(1, 100) if seed not in comparison.seeds][:2]
        said.append(f"Train {listed([*comparison.plain])} with more seeds, such as {free[0]} and {free[1]}.")
    return said
