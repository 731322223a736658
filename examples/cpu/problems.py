"""The arithmetic problems of the CPU quickstart, and what its model is taught to answer.

    python examples/cpu/problems.py DIR    # DIR/knoveleng/open-rs/{train,test}.jsonl

The model answers in the form the paper's system prompt asks for. It is taught some wrong answers and some broken
``<think>`` tags on purpose: reinforcement learning needs rewards that differ among the responses to one problem.
"""

import json
import random
from pathlib import Path
from typing import NamedTuple

import typer

SEED = 0
TRAIN_PROBLEMS = 512  # the other 98 are held out

BROKEN_FORMAT = 0.1  # share of taught responses without a matched pair of think tags

QUESTIONS = {
    "+": ("What is {a} + {b}?", "Compute {a} + {b}.", "Ann has {a} apples and gets {b} more. How many now?"),
    "-": ("What is {a} - {b}?", "Compute {a} - {b}.", "Ann has {a} apples and eats {b} of them. How many now?"),
}

# Ways of writing the think section, each with the share of right answers it is taught with: longer thoughts are right
# more often, so that training has a reason to change how the model writes as well as what it answers.
THOUGHTS = (
    ("{a} {op} {b} = {n}", 0.4),
    ("The result is {a} {op} {b} = {n}.", 0.5),
    ("I have to find {a} {op} {b}. I get {a} {op} {b} = {n}.", 0.6),
    ("{a} {op} {b} = {n}. Check: {n} {undo} {b} = {a}", 0.7),
)
SLIPS = (-10, -2, -1, 1, 2, 10)


class Problem(NamedTuple):
    """An addition or a subtraction of two numbers below 20 whose result is not negative."""

    a: int
    op: str
    b: int

    @property
    def answer(self) -> int:
        return self.a + self.b if self.op == "+" else self.a - self.b


def split_problems() -> tuple[list[Problem], list[Problem]]:
    """Every problem once, in a fixed random order: those to train on and those held out, the two disjoint."""
    problems = [Problem(a, "+", b) for a in range(20) for b in range(20)]
    problems += [Problem(a, "-", b) for a in range(20) for b in range(a + 1)]
    random.Random(SEED).shuffle(problems)
    return problems[:TRAIN_PROBLEMS], problems[TRAIN_PROBLEMS:]


def questions(problem: Problem) -> list[str]:
    """The problem in each of its wordings."""
    return [wording.format(a=problem.a, b=problem.b) for wording in QUESTIONS[problem.op]]


def question(problem: Problem, rng: random.Random) -> str:
    return rng.choice(questions(problem))


def response(problem: Problem, rng: random.Random, slips: bool) -> str:
    """One taught answer: right or a slip away from it, in one of the phrasings, the tags whole or broken."""
    thought, share_right = rng.choice(THOUGHTS)
    n = problem.answer
    if slips and rng.random() >= share_right:
        n = rng.choice([n + slip for slip in SLIPS if n + slip >= 0])
    thought = thought.format(a=problem.a, op=problem.op, b=problem.b, n=n, undo="-" if problem.op == "+" else "+")
    answer = f"<answer>\\boxed{{{n}}}</answer>"
    if rng.random() >= BROKEN_FORMAT:
        return f"<think>\n{thought}\n</think>\n{answer}"
    return rng.choice([f"<think>\n{thought}\n{answer}", f"{thought}\n{answer}"])


def write_problems(folder: Path) -> None:
    """Write the problems in the columns and under the name of Open-RS, as train.jsonl and test.jsonl.

    A problem to train on is asked in one wording, a held-out problem in each.
    """
    train, held_out = split_problems()
    rng = random.Random(SEED + 1)
    write(folder, "train", [(question(problem, rng), problem.answer) for problem in train])
    write(folder, "test", [(asked, problem.answer) for problem in held_out for asked in questions(problem)])


def write(folder: Path, split: str, asked: list[tuple[str, int]]) -> None:
    """Write questions and answers to ``folder/knoveleng/open-rs/SPLIT.jsonl``."""
    file = folder / "knoveleng" / "open-rs" / f"{split}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ""
    for question, answer in asked:
        row = {"problem": question, "solution": f"The result is $\\boxed{{{answer}}}$", "answer": str(answer)}
        lines += json.dumps(row | {"level": "Easy"}) + "\n"
    file.write_text(lines, encoding="utf-8", newline="\n")
    print(f"{len(asked)} questions in {file}")


if __name__ == "__main__":
    typer.run(write_problems)
