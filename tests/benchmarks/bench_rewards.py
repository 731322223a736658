r"""Our scorer beside math-verify alone, verl's and open-rs's, in one table.

    git clone https://github.com/huggingface/Math-Verify     # its tests have pairs, and verdicts on them
    git clone https://github.com/uw-nsl/TinyV                # has HardVerify-Math: right and wrong answers
    python tests/benchmarks/bench_rewards.py --data COPIES --math-verify Math-Verify \
        --hard-verify TinyV/benchmarks/HardVerify-Math.json

A cell says how many answers are judged rightly. Each ground truth of the five benchmarks is in a response of about a
thousand characters: as it is, written another way (27.0 for 27, \dfrac for \frac), and replaced by the next row's.
"Ways of writing" are those of tests/tools/answer_classes.py.
"""

import importlib
import itertools
import json
import logging
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from rich.console import Console
from rich.table import Table
from verl.utils.reward_score import math_dapo, math_reward, math_verify, prime_math

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import answer_classes

from cw_plugin.lab.rewards import compute_score
from cw_plugin.lab.rewards.rewrites import rewritten

THREADS = 8
THINKING = "Let us think step by step, and compute $a_1 = 3$, then $a_2 = \\frac{1}{2}$, and go on like that. " * 9
RESPONSE = "<think>" + THINKING + "</think> The answer is $\\boxed{%s}$."
PAIRS = ("test_all", "test_boxed", "test_numina_cases", "test_open_thoughts", "test_yujianll")
# Upstream's test says 1, because the unit is left out with which math-verify confuses Euler's number; its issue 14 says
# that these differ.
WRONG_UPSTREAM = ("$1 - \\frac{1}{\\mathrm{e}}$", "$1 + \\frac{1}{\\mathrm{e}}$")
# In row 52 of HardVerify-Math, the answer that is said to be wrong is the ground truth in another order.
SAME_IN_HARD_VERIFY = 52
BOXED = LatexExtractionConfig(boxed_match_priority=0)
# open-rs, src/open_r1/rewards.py, accuracy_reward
OPEN_RS = NormalizationConfig(nits=False, malformed_operators=False, equations=True, boxed="all", units=True)

Case = tuple[str, str, bool]  # response, ground truth, whether it is right


def plain(response: str, gold: str) -> float:
    """math-verify alone; a ground truth without marks of a formula is given to it in a box, as the answer is."""
    text = gold if "$" in gold or "boxed" in gold or "\\(" in gold else rf"\boxed{{{gold}}}"
    configs = [BOXED, ExprExtractionConfig()]
    expected = parse(text, configs, parsing_timeout=None)
    return float(verify(expected, parse(response, configs, parsing_timeout=None), timeout_seconds=None))


def open_rs(response: str, gold: str) -> float:
    expected = parse(f"${gold}$", [LatexExtractionConfig()], extraction_mode="first_match", parsing_timeout=None)
    if not expected:
        return 1.0
    config = LatexExtractionConfig(
        normalization_config=OPEN_RS, boxed_match_priority=0, try_extract_without_anchor=False
    )
    answer = parse(response, [config], extraction_mode="first_match", parsing_timeout=None)
    return float(verify(answer, expected, timeout_seconds=None))


SCORERS: dict[str, Callable[[str, str], float]] = {
    "ours": lambda response, gold: compute_score("benchmark", response, gold)["acc"],
    "math-verify alone": plain,
    "open-rs": open_rs,
    # verl's own default is 30 s.
    "verl math_verify": lambda response, gold: float(math_verify.compute_score(response, gold, timeout=10.0)),
    "verl math_reward": math_reward.compute_score,
    "verl math_dapo": lambda response, gold: math_dapo.compute_score(response, gold)["acc"],
    "verl prime_math": lambda response, gold: float(prime_math.compute_score(response, gold)[0]),
}
IN_TURN = ("math-verify alone", "open-rs", "verl prime_math")  # sympy's caches are not made for threads


def rewrite(gold: str) -> str:
    """The same answer, written another way."""
    return f"{gold}.0" if gold.lstrip("-").isdigit() else gold.replace(r"\frac", r"\dfrac")


def pairs_of_math_verify(clone: Path) -> list[Case]:
    """The pairs of its tests that use its default settings."""
    sys.path.insert(0, str(clone))
    cases = {}
    for module in PAIRS:
        for test in vars(importlib.import_module(f"tests.{module}")).values():
            for mark in getattr(test, "pytestmark", []):
                names = [name.strip() for name in mark.args[0].split(",")]
                for values in mark.args[1]:
                    given = dict(zip(names, values, strict=True))
                    if given.pop("precision", 6) == 6 and "strict" not in given:
                        right = bool(given.get("expected", given.get("result")))
                        pair = (given["pred"], given["gold"])
                        cases[pair] = right and pair[::-1] != WRONG_UPSTREAM
    return [(response, gold, right) for (response, gold), right in cases.items()]


def cases_of_hard_verify(file: Path) -> list[Case]:
    """An answer to each ground truth that is right, and one that is wrong, in a box."""
    return [
        (RESPONSE % row[key], row["ground_truth"], key == "fn_output" or row["id"] == SAME_IN_HARD_VERIFY)
        for row in json.loads(file.read_text(encoding="utf-8"))
        for key in ("fn_output", "tn_output")
    ]


def judged_rightly(name: str, cases: list[Case]) -> int:
    """How many answers a scorer judges rightly."""
    with ThreadPoolExecutor(1 if name in IN_TURN else THREADS) as threads:
        scores = threads.map(lambda case: SCORERS[name](*case[:2]), cases)
        return sum(score == right for score, (*_, right) in zip(scores, cases, strict=True))


def main(
    data: Annotated[Path, typer.Option(help="Local copies of the benchmarks, as for cw-grpo prepare.")],
    upstream: Annotated[Path, typer.Option("--math-verify", help="A clone of Math-Verify, for its tests' pairs.")],
    hard: Annotated[Path, typer.Option("--hard-verify", help="HardVerify-Math.json, in a clone of TinyV.")],
) -> None:
    """Compare the scorers and print the table."""
    console = Console(soft_wrap=True, width=200)
    for package in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(package).setLevel(logging.ERROR)  # they warn that timeouts are off
    golds = [gold for *_, gold in answer_classes.benchmark_answers(data)]
    others = [(b, a) for a, b in itertools.pairwise(golds) if rewritten(a) != rewritten(b)]
    columns: dict[str, list[Case]] = {
        "own gold": [(RESPONSE % gold, gold, True) for gold in golds],
        "rewritten": [(RESPONSE % rewrite(gold), gold, True) for gold in golds if rewrite(gold) != gold],
        "another gold": [(RESPONSE % answer, gold, (gold, answer) == ("5", "x=5")) for answer, gold in others],
        "ways of writing": [(response, gold, right) for _, gold, response, right in answer_classes.cases()],
    }
    for name, cases in (("HardVerify", cases_of_hard_verify(hard)), ("Math-Verify", pairs_of_math_verify(upstream))):
        columns[f"{name}, right"] = [case for case in cases if case[2]]
        columns[f"{name}, wrong"] = [case for case in cases if not case[2]]
    table = Table("scorer", *columns, title="answers judged rightly")
    for name in SCORERS:
        table.add_row(name, *[f"{judged_rightly(name, cases)}/{len(cases)}" for cases in columns.values()])
    console.print(table)
    if math_verify._pool is not None:
        for process in list(math_verify._pool._processes.values()):
            process.kill()  # this pool waits for its hung workers at exit


if __name__ == "__main__":
    typer.run(main)
