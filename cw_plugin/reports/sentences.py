"""What a comparison shows, in sentences: what is significant, what is broken, and which runs would decide."""

from collections.abc import Iterator, Sequence

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
            yield f"{run.path} repeated {_steps(run.repeated)} after a restart; the page shows them as trained last."


def _steps(steps: Sequence[int]) -> str:
    """``step 3``, ``steps 1 to 3 and 12``."""
    spans: list[tuple[int, int]] = []
    for step in steps:
        if spans and step == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], step
        else:
            spans.append((step, step))
    words = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    return ("step " if len(steps) == 1 else "steps ") + listed(words)


def _broken(run: Broken, comparison: Comparison) -> str:
    is_one_of_several = comparison.runs.get(run.method, 0) > 1 and not pd.isna(run.seed)
    who = f"{run.method} with seed {run.seed}" if is_one_of_several else run.method
    verb = "is" if len(run.outcomes) == 1 else "are"
    return f"{who} broke down: its {listed(run.outcomes)} {verb} NaN or infinite from step {run.step} of {run.last} on."


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
