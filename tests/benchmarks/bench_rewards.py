r"""Our scorer beside verl's on the same answers: how many are judged rightly, gradings per second, hanging inputs.

    python tests/benchmarks/bench_rewards.py --data COPIES [--rows 2000] [--hanging 20]

Answers: each benchmark's golds, every one in a response of about a thousand characters, as it stands, written another
way (27.0 for 27, \dfrac for \frac), and replaced by the next row's gold; and the right and wrong answers of
tests/answer_classes.py (lists of boxes, assignments, percent words, commas, inequalities). Speed is measured twice on
the benchmarks' answers, alone and with hanging inputs strewn among them. All scorers are called from as many threads,
as verl's reward loop does.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
import answer_classes
import hostile

from cw_plugin.data.answers import final_answer
from cw_plugin.data.sources import SOURCES
from cw_plugin.rewards import compute_score
from cw_plugin.rewards.boxed import normalize

THREADS = 8
TIMED = ("ours", "verl math_verify")
THINKING = "Let us think step by step, and compute $a_1 = 3$, then $a_2 = \\frac{1}{2}$, and go on like that. " * 9
RESPONSE = "<think>" + THINKING + "</think> The answer is $\\boxed{%s}$."

# Different golds with the same value, so that the one earns the other.
EQUAL = {("5", "x=5")}

Scorer = Callable[[str, str], float]


def ours(response: str, gold: str) -> float:
    return compute_score("benchmark", response, gold)["acc"]


def verl_math_verify(response: str, gold: str) -> float:
    from verl.utils.reward_score import math_verify

    return float(math_verify.compute_score(response, gold, timeout=10.0))  # its own default is 30 s


def verl_math_reward(response: str, gold: str) -> float:
    from verl.utils.reward_score import math_reward

    return float(math_reward.compute_score(response, gold))


def verl_math_dapo(response: str, gold: str) -> float:
    from verl.utils.reward_score import math_dapo

    return float(math_dapo.compute_score(response, gold)["acc"])


SCORERS: dict[str, Scorer] = {
    "ours": ours,
    "verl math_verify": verl_math_verify,
    "verl math_reward": verl_math_reward,
    "verl math_dapo": verl_math_dapo,
}


def load_golds(data: Path) -> list[str]:
    golds = []
    for source in SOURCES.values():
        if not source.training:
            for line in (data / source.path / f"{source.split}.jsonl").open(encoding="utf-8"):
                golds.append(final_answer(json.loads(line)[source.ground_truth], source.is_boxed))
    return golds


def rewrite(gold: str) -> str:
    """The same answer, written another way."""
    return f"{gold}.0" if gold.lstrip("-").isdigit() else gold.replace(r"\frac", r"\dfrac")


def score_all(scorer: Scorer, jobs: list[tuple[str, str]]) -> tuple[list[float], float]:
    """The scores of (response, gold) pairs, and how many were given in a second."""
    start = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        scores = list(threads.map(lambda job: scorer(*job), jobs))
    return scores, len(jobs) / (time.perf_counter() - start)


def busy_children(seconds: float = 3.0) -> int:
    """Child processes that still compute although nobody waits for them."""
    children = psutil.Process().children(recursive=True)
    before = {child.pid: sum(child.cpu_times()[:2]) for child in children if child.is_running()}
    time.sleep(seconds)
    alive = [child for child in children if child.is_running() and child.pid in before]
    return sum(sum(child.cpu_times()[:2]) - before[child.pid] > 0.5 * seconds / psutil.cpu_count() for child in alive)


def main(
    data: Annotated[Path, typer.Option(help="Local copies of the benchmarks, as for cw-grpo prepare.")],
    rows: Annotated[int, typer.Option(help="Gradings for the measurements of speed.")] = 2000,
    hanging: Annotated[int, typer.Option(help="Hanging inputs among them.")] = 20,
) -> None:
    """Compare the scorers and print the tables."""
    console = Console(soft_wrap=True)
    golds = load_golds(data)
    others = [(b, a) for a, b in itertools.pairwise(golds) if normalize(a) != normalize(b)]
    cases = {  # (response, gold, whether it is right)
        "own gold": [(RESPONSE % gold, gold, True) for gold in golds],
        "rewritten": [(RESPONSE % rewrite(gold), gold, True) for gold in golds if rewrite(gold) != gold],
        "another gold": [(RESPONSE % answer, gold, (gold, answer) in EQUAL) for answer, gold in others],
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
    table = Table(
        "scorer", "gradings/s", "gradings/s, hanging", "normal ones changed", "still busy 3 s later",
        title=f"{rows} normal answers, then {hanging} hanging among them, {psutil.cpu_count()} CPUs",
    )  # fmt: skip
    for name in TIMED:  # their processes have started above
        scores, speed = score_all(SCORERS[name], normal)
        mixed_scores, mixed_speed = score_all(SCORERS[name], mixed)
        kept = [score for score, (_, gold) in zip(mixed_scores, mixed, strict=True) if gold != hostile.GOLD]
        changed = sum(a != b for a, b in zip(scores, kept, strict=True))
        table.add_row(name, f"{speed:.0f}", f"{mixed_speed:.1f}", str(changed), str(busy_children()))
    console.print(table)

    from verl.utils.reward_score import math_verify

    for process in list(math_verify._pool._processes.values()):
        process.kill()  # this pool waits for its hung workers at exit


if __name__ == "__main__":
    typer.run(main)
