"""The study's task: products of two numbers from 10 to 99, worked out by partial products; and the model that starts.

    python examples/study/task.py problems DIR             # DIR/{train,tune,test}.parquet, in verl's columns
    python examples/study/task.py model DIR                # tokenizer and weights; about nine minutes on one core
    python examples/study/task.py model DIR --fillers 6    # likewise; its responses have six fillers

The model is taught right answers only, but for so short a time that many of its own are wrong. A response may split
either number, and begin with the tens or with the ones; which of the four ways is easiest depends on the problem, and
reinforcement learning is free to find out. Fillers are tokens that do not matter, right after <think>: each is drawn
from 64 equally likely ones, says nothing about the problem, and the reward ignores it.
"""

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from torch import Tensor
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))
from make_model import chat_row, loss_of, optimised, qwen2, save, train_tokenizer

app = typer.Typer(add_completion=False)
Problem = tuple[int, int]  # the two factors

SEED = 0
HELD_OUT = 256  # problems to report, and as many to choose settings by
REPEATS = 2  # of a held-out problem, each with an answer of its own

STEPS = 1400
ROWS = 128  # per step
PEAK_LR = 2e-3
WARMUP_STEPS = 100

MAX_NEW_TOKENS = 24

FILLERS = [f"~{number:02}" for number in range(64)]  # ordinary entries of the tokenizer, each one token


def split_problems() -> dict[str, list[Problem]]:
    """Problems to report, to choose settings by, and to train on, each in a fixed random order.

    A product is the same in either order: whoever is held out is so both ways, and asked in one.
    """
    rng = random.Random(SEED)
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100)]
    rng.shuffle(pairs)
    held_out = [rng.choice([pair, pair[::-1]]) for pair in pairs[: 2 * HELD_OUT]]
    train = sorted({order for pair in pairs[2 * HELD_OUT :] for order in (pair, pair[::-1])})
    rng.shuffle(train)
    return {"test": held_out[:HELD_OUT], "tune": held_out[HELD_OUT:], "train": train}


def messages(problem: Problem) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{problem[0]}*{problem[1]}"}]


def response(problem: Problem, rng: random.Random, fillers: int = 0) -> str:
    """One taught answer, in one of the four ways."""
    a, b = problem if rng.random() < 0.5 else reversed(problem)
    parts = [a * (b // 10 * 10), a * (b % 10)]
    if rng.random() < 0.5:
        parts.reverse()
    nothing = "".join(rng.choices(FILLERS, k=fillers))
    return f"<think>{nothing}{parts[0]}+{parts[1]}={a * b}</think>\\boxed{{{a * b}}}"


@app.command("problems")
def write_problems(folder: Path) -> None:
    """Write train.parquet, tune.parquet and test.parquet, in verl's columns."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, problems in split_problems().items():
        rows = [
            {
                "data_source": "study/products",
                "prompt": messages(problem),
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(problem[0] * problem[1])},
                "extra_info": {"index": index, "split": split},
            }
            for index, problem in enumerate(problems)
            # In place of val_kwargs.n=2, with which verl draws a thousand bootstrap samples for each problem.
            for _ in range(1 if split == "train" else REPEATS)
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}.parquet")


def make_tokenizer() -> Qwen2Tokenizer:
    """The think tags are tokens of their own, as they are in Qwen3."""
    rng = random.Random(SEED)
    corpus = ["user\nassistant\n" + response(problem, rng) for problem in split_problems()["train"][:2000]]
    tokenizer = train_tokenizer(corpus, 300)
    tokenizer.add_tokens(["<think>", "</think>", "\\boxed{"])
    return tokenizer


def taught_steps(
    model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, steps: int, peak_lr: float, fillers: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """Every step and its loss; the gradient is applied before the next one. Held-out problems are not taught."""
    problems, rng = split_problems()["train"], random.Random(SEED)
    for step in optimised(model, steps, peak_lr, WARMUP_STEPS):
        chosen = rng.choices(problems, k=ROWS)
        rows = [chat_row(tokenizer, f"{a}*{b}", response((a, b), rng, fillers)) for a, b in chosen]
        loss = loss_of(model, tokenizer, rows)
        loss.backward()
        yield step, loss


@app.command("model")
def write_model(folder: Path, fillers: int = 0) -> None:
    """Teach a model of 0.82 million parameters, and save it with its tokenizer; about nine minutes on one core."""
    tokenizer, start = make_tokenizer(), time.monotonic()
    tokenizer.add_tokens(FILLERS if fillers else [])
    model = qwen2(tokenizer, mlp=512, key_value_heads=4, positions=128)
    for step, loss in taught_steps(model, tokenizer, STEPS, PEAK_LR, fillers):
        if step % 100 == 0:
            print(f"step {step} of {STEPS}: loss {loss.item():.3f}; {time.monotonic() - start:.0f} s", flush=True)
    save(model, tokenizer, folder)


if __name__ == "__main__":
    app()
