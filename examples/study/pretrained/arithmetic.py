"""The problems of the studies of a pretrained model, what of them is held out, and how far guessing gets."""

import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
import stages
from guessing import guessed

Problem = dict[str, str]  # question, prompt and answer


def problems() -> list[Problem]:
    """Sums and differences of numbers from 10 to 49, in an order that never changes. All prompts have 25 tokens."""
    rng, rows = random.Random(7), []
    for first in range(10, 50):
        for second in range(10, 50):
            rows.append((f"{first} + {second}", first + second))
            if first > second:
                rows.append((f"{first} - {second}", first - second))
    rng.shuffle(rows)
    return [problem(question, answer) for question, answer in rows]


def problem(question: str, answer: int) -> Problem:
    asked = f"What is {question}? Answer with the number only."
    prompt = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    return {"question": question, "prompt": prompt, "answer": str(answer)}


def split_of_problems() -> tuple[list[Problem], list[Problem]]:
    """The held-out problems, and those that are trained on."""
    every = problems()
    return every[: stages.HELD_OUT], every[stages.HELD_OUT :]


def operation(of: Problem) -> str:
    """``+`` or ``-``."""
    return of["question"].split()[1]


def is_right(text: str, answer: str) -> bool:
    """Whether the last number of a text is the answer."""
    numbers = re.findall(r"-?\d+", text)
    return bool(numbers) and numbers[-1] == answer


def guessed_apart(held_out: Sequence[Problem], trained_on: Sequence[Problem], least: int, guesses: int) -> float:
    """What :func:`guessed` says of somebody who guesses sums and differences apart."""
    share = 0.0
    for sign in "+-":
        asked, known = ([row["answer"] for row in rows if operation(row) == sign] for rows in (held_out, trained_on))
        share += guessed(asked, known, least, guesses) * len(asked) / len(held_out)
    return share
