"""How much of the gradient the first wrong token of a response holds, what follows it, and the rest; how surprising
these tokens are, and how uncertain the model is at their positions.

python examples/study/boundary/first_wrong.py FILE    # a parquet file; less than a minute on one core
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from train import HERE, PROMPTS, RESPONSES, grade, task
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(HERE.parent))
from study import save

from cw_plugin.weights import reweight

BATCHES = 64
KERNELS = {"grpo": "none", "cw_grpo": "gaussian"}
KINDS = ("first wrong token", "after it", "all others")
# Of the tokens of a batch; these overlap KINDS.
FIFTHS = ("the fifth with the highest entropy", "the fifth with the lowest probability")


def taught(problem: task.Problem) -> set[str]:
    """The answers that the model was taught for a problem."""
    rng = random.Random(0)
    return {
        task.response(problem, rng) for _ in range(64)
    }  # four at most; that one of them is never drawn has p < 1e-7


def first_wrong(tokenizer: Any, ids: list[int], right: set[str]) -> int:
    """Position of the first token with which a response begins no right answer; len(ids) if there is none.

    An end before the answer is complete, and any text after it, are wrong too.
    """
    for position, token in enumerate(ids):
        text = tokenizer.decode(ids[: position + 1], skip_special_tokens=True)
        if token == tokenizer.eos_token_id:
            return len(ids) if text in right else position
        if not any(answer.startswith(text) for answer in right):
            return position
    return len(ids)


def kinds(tokenizer: Any, completions: Tensor, mask: Tensor, problems: list[task.Problem]) -> Tensor:
    """(rows, time): 0, 1 or 2 for KINDS, and -1 where the mask is 0."""
    kind = torch.full(mask.shape, 2)
    for row, (ids, valid) in enumerate(zip(completions.tolist(), mask.tolist(), strict=True)):
        right = taught(problems[row // RESPONSES])
        at = first_wrong(tokenizer, ids[: sum(valid)], right)
        kind[row, at:] = 1
        kind[row, at : at + 1] = 0
    return kind.where(mask > 0, -1)


def highest_fifth(values: Tensor, mask: Tensor) -> Tensor:
    """(rows, time): True for the fifth of the valid tokens with the highest values."""
    return (values > values[mask > 0].quantile(0.8)) & (mask > 0)


@torch.no_grad()
def main(path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(task.SEED)
    folder = HERE.parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    problems = task.split_problems()["train"]
    totals: dict[str, Tensor] = {}
    for batch in range(BATCHES):
        asked = problems[batch * PROMPTS : (batch + 1) * PROMPTS]
        samples = task.sample(model, tokenizer, task.padded_prompts(tokenizer, asked), task.MAX_NEW_TOKENS)
        mask = samples.response_mask.int()
        completions = samples.ids[:, -mask.shape[1] :]
        of_all = torch.log_softmax(model(samples.ids).logits[:, -mask.shape[1] - 1 : -1], -1)
        log_probs = of_all.gather(-1, completions[..., None])[..., 0]
        rewards = [sum(grade(text, math.prod(asked[row // RESPONSES]))) for row, text in enumerate(samples.texts)]
        of_group = torch.tensor(rewards).view(-1, RESPONSES)
        a = ((of_group - of_group.mean(1, keepdim=True)) / (of_group.std(1, keepdim=True) + 1e-4)).flatten()
        group = torch.arange(PROMPTS).repeat_interleave(RESPONSES)
        weighted = {name: reweight(log_probs, a, mask, group, kernel)[0] for name, kernel in KERNELS.items()}
        # |e - pi|^2 over the vocabulary, e the sampled token
        length = of_all.exp().square().sum(-1) - 2 * log_probs.exp() + 1
        measured = {
            "tokens": torch.ones_like(log_probs),
            "surprisal": -log_probs,
            "entropy": -(of_all.exp() * of_all).sum(-1),
            **{method: values.square() * length for method, values in weighted.items()},
        }
        kind = kinds(tokenizer, completions, mask, asked)
        chosen = [kind == number for number in range(len(KINDS))]
        chosen += [highest_fifth(measured[name], mask) for name in ("entropy", "surprisal")]
        for name, values in measured.items():
            totals[name] = totals.get(name, 0) + torch.stack([values[tokens].sum() for tokens in chosen])
    columns = {"kind": [*KINDS, *FIFTHS]} | {name: sums.tolist() for name, sums in totals.items()}
    save(pd.DataFrame(columns), path)
    print(columns)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
