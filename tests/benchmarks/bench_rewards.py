r"""Our scorer beside verl's on the same answers: how many are judged rightly, gradings per second, hanging inputs.

    python tests/benchmarks/bench_rewards.py --data COPIES [--rows 2000] [--hanging 20]

The answers are each benchmark's ground truths, and those of tests/tools/answer_classes.py. Each ground truth is in a
response of about a thousand characters: as it is, written another way (27.0 for 27, \dfrac for \frac), and replaced by
the next row's. Speed is measured twice on the benchmarks' answers: alone, and with hanging inputs strewn among them.
All scorers are called from the same number of threads, as in verl's reward loop.
"""

import itertools
import os
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from verl.utils.reward_score import math_dapo, math_reward, math_verify

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import answer_classes
import hostile

from cw_plugin.lab.rewards import compute_score
from cw_plugin.lab.rewards.boxed import normalize

THREADS = 8
THINKING = "Let us think step by step, and compute $a_1 = 3$, then $a_2 = \\frac{1}{2}$, and go on like that. " * 9
RESPONSE = "<think>" + THINKING + "</think> The answer is $\\boxed{%s}$."


def ours(response: str, gold: str) -> float:
    return compute_score("benchmark", response, gold)["acc"]


def verl_math_verify(response: str, gold: str) -> float:
    return float(math_verify.compute_score(response, gold, timeout=10.0))  # its own default is 30 s


SCORERS: dict[str, Callable[[str, str], float]] = {
    "ours": ours,
    "verl math_verify": verl_math_verify,
    "verl math_reward": math_reward.compute_score,
    "verl math_dapo": lambda response, gold: math_dapo.compute_score(response, gold)["acc"],
}


def rewrite(gold: str) -> str:
    """The same answer, written another way."""
    return f"{gold}.0" if gold.lstrip("-").isdigit() else gold.replace(r"\frac", r"\dfrac")


def score_all(scorer: Callable[[str, str], float], jobs: list[tuple[str, str]]) -> tuple[list[float], float]:
    """The scores of (response, gold) pairs, and how many were given in a second."""
    start = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        scores = list(threads.map(lambda job: scorer(*job), jobs))
    return scores, len(jobs) / (time.perf_counter() - start)


def main(
    data: Annotated[Path, typer.Option(help="Local copies of the benchmarks, as for cw-grpo prepare.")],
    rows: Annotated[int, typer.Option(help="Gradings for the measurements of speed.")] = 2000,
    hanging: Annotated[int, typer.Option(help="Hanging inputs among them.")] = 20,
) -> None:
    """Compare the scorers and print the tables."""
    console = Console(soft_wrap=True)
    golds = [gold for *_, gold in answer_classes.benchmark_answers(data)]
    others = [(b, a) for a, b in itertools.pairwise(golds) if normalize(a) != normalize(b)]
    cases = {  # (response, gold, whether it is right)
        "own gold": [(RESPONSE % gold, gold, True) for gold in golds],
        "rewritten": [(RESPONSE % rewrite(gold), gold, True) for gold in golds if rewrite(gold) != gold],
        "another gold": [(RESPONSE % answer, gold, (gold, answer) == ("5", "x=5")) for answer, gold in others],
        "ways of writing": [(response, gold, right) for _, gold, response, right in answer_classes.cases()],
    }
    table = Table("scorer", *cases, title="answers judged rightly")
    for name, scorer in SCORERS.items():
        cells = []
        for judged in cases.values():
            scores, _ = score_all(scorer, [(response, gold) for response, gold, _ in judged])
            right = sum(score == wanted for score, (*_, wanted) in zip(scores, judged, strict=True))
            cells.append(f"{right}/{len(judged)}")
        table.add_row(name, *cells)
    console.print(table)

    chance = random.Random(0)
    jobs = [(response, gold) for kind in list(cases)[:3] for response, gold, _ in cases[kind]]
    normal = [chance.choice(jobs) for _ in range(rows)]
    mixed = normal.copy()
    for index in range(hanging):
        response = RESPONSE % hostile.HANGING[index % len(hostile.HANGING)]
        mixed.insert(chance.randrange(len(mixed)), (response, hostile.GOLD))
    title = f"{rows} normal answers, then {hanging} hanging among them, {os.cpu_count()} CPUs"
    table = Table("scorer", "gradings/s", "gradings/s, hanging", "normal ones changed", title=title)
    for name in ("ours", "verl math_verify"):  # their processes have started above
        scores, speed = score_all(SCORERS[name], normal)
        mixed_scores, mixed_speed = score_all(SCORERS[name], mixed)
        kept = [score for score, (_, gold) in zip(mixed_scores, mixed, strict=True) if gold != hostile.GOLD]
        changed = sum(a != b for a, b in zip(scores, kept, strict=True))
        table.add_row(name, f"{speed:.0f}", f"{mixed_speed:.1f}", str(changed))
    console.print(table)

    for process in list(math_verify._pool._processes.values()):
        process.kill()  # this pool waits for its hung workers at exit


if __name__ == "__main__":
    typer.run(main)
