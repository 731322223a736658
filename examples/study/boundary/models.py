"""The models whose responses hold tokens that do not matter.

    python examples/study/boundary/models.py 2 DIR    # taught with 2 such tokens; about ten minutes on one core

They are taught as the study's model is (../task.py), but each response has NUMBER tokens more, right after <think>.
Each of them is drawn from 64 equally likely ones. They say nothing about the problem, and the reward ignores them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import task

FILLERS = [f"~{number:02}" for number in range(64)]  # ordinary entries of the tokenizer, each one token


def response(problem: task.Problem, rng: random.Random, number: int) -> str:
    """One taught answer with ``number`` fillers."""
    return task.response(problem, rng).replace("<think>", "<think>" + "".join(rng.choices(FILLERS, k=number)))


def make(number: int, folder: Path) -> None:
    torch.set_num_threads(1)  # how sums are split among threads changes the weights
    tokenizer = task.make_tokenizer()
    tokenizer.add_tokens(FILLERS)
    torch.manual_seed(task.SEED)
    model = task.make_model(tokenizer)
    task.train(model, tokenizer, lambda problem, rng: response(problem, rng, number))
    task.save(model, tokenizer, folder)


if __name__ == "__main__":
    make(int(sys.argv[1]), Path(sys.argv[2]))
