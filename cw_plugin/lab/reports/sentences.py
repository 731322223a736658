"""What a comparison shows, in sentences: what is significant, what is broken, and which runs would decide."""

import itertools
from collections.abc import Iterator, Sequence

import pandas as pd

from cw_plugin.lab.reports.comparison import Broken, Comparison, Outcome
from cw_plugin.lab.reports.formats import listed
from cw_plugin.lab.reports.runs import Run

ENOUGH = 5  # seeds; with fewer, the report asks for more

Compared = tuple[Outcome, str]  # an outcome, and the method whose difference in it is meant


def sentences(comparison: Comparison) -> list[str]:
    """Say what a comparison shows, the most important first."""
    broken = [_broken(run, comparison) for run in comparison.broken]
    if len(set(comparison.plain.values())) < 2:
        return [*broken, *_one_method(comparison)]
    return [*broken, *_differences(comparison)]


def restarts(runs: list[Run]) -> Iterator[str]:
    """A sentence for each run that has steps of several starts."""
    for run in runs:
        if run.repeated:
            yield f"{run.path} repeated {_steps(run.repeated)} after a restart; the page shows them as trained last."


def notes_of(comparison: Comparison) -> list[str]:
    """What stands below the table of differences: how it was tested, and what is not compared."""
    notes = []
    if comparison.tests:
        tests = "1 test" if comparison.tests == 1 else f"{comparison.tests} tests"
        notes += [
            "Brackets: 95% interval over seeds, by a t-test: paired if both methods have the same seeds, else Welch's.",
            f"* p < 0.05, corrected for {tests} (Holm); an interval alone is not corrected.",
        ]
    if comparison.validated:
        last = [f"{step} of {name}" for name, step in comparison.validated.items() if step is not None]
        without = [name for name, step in comparison.validated.items() if step is None]
        missing = f"; {listed(without)} has none" if without else ""
        notes.append(f"Accuracy is not compared: no step was validated in every run. Last: {listed(last)}{missing}.")
    if any(outcome.broken for outcome in comparison.outcomes):
        notes.append("A method with a run that is not finite to the end of these steps is not compared.")
    return notes


def _steps(steps: Sequence[int]) -> str:
    """``step 3``, ``steps 1 to 3 and 12``."""
    spans: list[list[int]] = []  # each of steps without a gap
    for step in steps:
        if spans and step == spans[-1][-1] + 1:
            spans[-1].append(step)
        else:
            spans.append([step])
    words = [str(span[0]) if len(span) == 1 else f"{span[0]} to {span[-1]}" for span in spans]
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
    if len(names) > 1 and not any(comparison.runs.values()):  # answers alone, which do not say the method
        return [f"Which of {listed(names)} is plain GRPO is not known: give its folder as GRPO=FOLDER."]
    if comparison.plain[comparison.reference]:
        missing, how = "CW-GRPO", "with the weights"
    else:
        missing, how = "GRPO", "with kernel=none"
    verb = "is" if len(names) == 1 else "are"
    return [
        f"Only {listed(names)} {verb} here, so nothing shows whether the weights help.",
        f"Train {missing} with the same seeds: the same command, another folder, {how}.",
    ]


def _differences(comparison: Comparison) -> list[str]:
    compared = [(outcome, name) for outcome in comparison.outcomes for name in outcome.differences]
    if not compared:
        return []
    fewest_seeds = [_fewest_seeds(outcome, name, comparison.reference) for outcome, name in compared]
    tested = [pair for pair, seeds in zip(compared, fewest_seeds, strict=True) if seeds > 1]
    of_one_run = [pair for pair, seeds in zip(compared, fewest_seeds, strict=True) if seeds == 1]
    significant = [(outcome, name) for outcome, name in tested if name in outcome.significant]
    unclear = [outcome.name for outcome, name in tested if name not in outcome.significant]
    are_two = len(comparison.plain) == 2
    said = []
    if tested and not are_two:
        said.append(
            f"{len(significant)} of {len(tested)} differences to {comparison.reference} are significant (star)."
        )
    elif significant:
        said.append(_lower_and_higher(significant))
    if of_one_run:
        said.append(_one_run(of_one_run, is_all=not tested))
    if unclear and are_two:
        said.append(f"No difference in {listed(unclear)} is significant.")
    if min(fewest_seeds) < ENOUGH and (unclear or of_one_run):
        said.append(f"Train {listed(list(comparison.plain))} with more seeds{_free_seeds(comparison)}.")
    return said


def _one_run(compared: Sequence[Compared], is_all: bool) -> str:
    """That these differences, all or some, are of one run of a method."""
    if is_all:
        return "One run does not tell methods apart: another seed may change the sign of each difference."
    methods = listed(list(dict.fromkeys(name for _, name in compared)))
    outcomes = listed(list(dict.fromkeys(outcome.name for outcome, _ in compared)))
    return f"For {methods}, the difference in {outcomes} is of one run: another seed may change its sign."


def _fewest_seeds(outcome: Outcome, method: str, reference: str) -> int:
    """How many runs the method has in an outcome, or the reference, if it has fewer."""
    return min(outcome.seeds[method], outcome.seeds[reference])


def _lower_and_higher(significant: Sequence[Compared]) -> str:
    """``CW-GRPO is lower in accuracy and reward, and higher in entropy.``, of one method."""
    lower = [outcome.name for outcome, name in significant if outcome.differences[name].value < 0]
    higher = [outcome.name for outcome, _ in significant if outcome.name not in lower]
    sides = []
    if lower:
        sides.append(f"lower in {listed(lower)}")
    if higher:
        sides.append(f"higher in {listed(higher)}")
    _, method = significant[0]
    return f"{method} is {', and '.join(sides)}."


def _free_seeds(comparison: Comparison) -> str:
    """``, such as 4 and 5``: the first two seeds that no run has; empty if the seed of a run is not known."""
    seeds = comparison.seeds
    if not seeds or any(pd.isna(seed) for seed in seeds):
        return ""
    free = (seed for seed in itertools.count(1) if seed not in seeds)
    first, second = itertools.islice(free, 2)
    return f", such as {first} and {second}"
