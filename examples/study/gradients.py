"""Which way the first update of each method points, and which way the gradient of the expected reward does.

    python examples/study/gradients.py FILE    # a parquet file; about five minutes on one core, and 5 GB of memory

The starting model answers the prompts of BATCHES training steps; on each batch every method's loss, the one that it
trains with, is differentiated. The batch's 64 responses make one update here, where the study makes two of them.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import variants
from study import BLOCKS, HERE, save
from task import MAX_NEW_TOKENS, SAMPLES_PER_PROBLEM, Problem, padded_prompts, sample, split_problems
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2ForCausalLM, Qwen2Tokenizer
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

from cw_plugin.rewards import compute_score
from cw_plugin.verl_integration.estimator import compute_cw_grpo_advantage

BATCHES = 128
PROMPTS = 8  # of a batch
SEED = 0

# Of a method the options of its advantages, or the settings of its loss on GRPO's advantages.
ESTIMATORS = {"grpo": {"kernel": "none"}, "cw_grpo": {}, "cw_grpo_batch": {"scope": "batch"},
              "cw_grpo_shuffled": {"kernel": "variants:shuffled"}}  # fmt: skip
CLIP_COV = {"clip_cov": 0.0002, "clip_cov_0.005": 0.005, "clip_cov_0.02": 0.02}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rows = pd.DataFrame(measure(HERE / "model", BATCHES))
    save(rows, Path(sys.argv[1]))
    print(rows.round(3).to_string(index=False))


def measure(folder: Path, batches: int) -> list[dict[str, str | float]]:
    """Rows of method, quantity, value and standard error."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    problems, rng = split_problems()["train"], random.Random(SEED)
    gradients: dict[str, Tensor] = {}
    held = torch.zeros(batches, 6, dtype=torch.float64)
    start = time.monotonic()
    for batch in range(batches):
        losses, held[batch] = losses_of(model, tokenizer, rng.sample(problems, PROMPTS))
        for name, loss in losses.items():
            gradient = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            of_name = gradients.setdefault(name, torch.empty(batches, model.num_parameters()))
            torch.cat([part.flatten() for part in gradient], out=of_name[batch])
        if (batch + 1) % 16 == 0:
            print(f"{batch + 1} of {batches} batches, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)

    reward = gradients.pop("reward")
    squares = {name: of_name.square().sum(1).double().numpy() for name, of_name in gradients.items()}
    products = {name: (of_name @ reward.T).double().numpy() for name, of_name in gradients.items()}

    def relative(name: str, kept: np.ndarray) -> dict[str, float]:
        ours, grpo = ((squares[of][kept], products[of][np.ix_(kept, kept)]) for of in (name, "grpo"))
        return relative_to(*ours, *grpo)

    rows = [
        {"method": name, **row} for name in gradients for row in jackknife(functools.partial(relative, name), batches)
    ]
    shares = jackknife(lambda kept: shares_of(held.numpy()[kept]), batches)
    return rows + [{"method": "cw_grpo", **row} for row in shares]


def losses_of(
    model: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, problems: Sequence[Problem]
) -> tuple[dict[str, Tensor], Tensor]:
    """Every method's loss on one batch of fresh responses, and as "reward" one whose gradient is the policy gradient.

    Also, of the tokens that CW-GRPO gives a kernel below one half and of all: how many, and the sum of |A (e - pi)|^2,
    the squared gradient with respect to a token's logits. And of as many of the least probable tokens: that sum, and
    how many of them are the same tokens.
    """
    samples = sample(model, tokenizer, padded_prompts(tokenizer, problems), MAX_NEW_TOKENS)
    mask = samples.response_mask.int()
    width = mask.shape[1]
    responses = samples.ids[:, -width:]
    logits = model(samples.ids).logits[:, -width - 1 : -1]  # every prompt has as many tokens: nothing is padded before
    log_probs = torch.log_softmax(logits, -1).gather(-1, responses[..., None])[..., 0]
    old_log_probs = log_probs.detach()

    answers = [a * b for a, b in problems for _ in range(SAMPLES_PER_PROBLEM)]
    scores = [
        compute_score("study/products", text, str(answer), opens_think=False)["score"]
        for text, answer in zip(samples.texts, answers, strict=True)
    ]
    group = torch.arange(len(problems)).repeat_interleave(SAMPLES_PER_PROBLEM)
    rewards = torch.zeros(mask.shape)
    rewards[:, 0] = torch.tensor(scores)

    def advantages_of(**options: str) -> Tensor:
        config = {"cw_grpo": {"record_every": 0} | options}
        uids = group.numpy().astype(object)
        return compute_cw_grpo_advantage(rewards, mask, uids, config=config, old_log_probs=old_log_probs)[0]

    def loss_of(advantages: Tensor, mode: str = "vanilla", **policy_loss: float) -> Tensor:
        config = ActorConfig(
            strategy="fsdp2",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=len(mask),
            policy_loss=PolicyLossConfig(loss_mode=mode, **policy_loss),
        )
        return get_policy_loss_fn(mode)(old_log_probs, log_probs, advantages, mask, "token-mean", config)[0]

    advantages = {name: advantages_of(**options) for name, options in ESTIMATORS.items()}
    plain = advantages["grpo"]
    for variant in ("uncentred", "unnormalised"):
        advantages[f"cw_grpo_{variant}"] = getattr(variants, variant)(old_log_probs, plain[:, 0], mask, group)[0]
    losses = {name: loss_of(values) for name, values in advantages.items()}
    losses |= {name: loss_of(plain, "clip_cov", clip_cov_ratio=ratio) for name, ratio in CLIP_COV.items()}
    # Of the expected reward: the log-prob of a whole response, times its reward less the group's mean.
    of_group = torch.tensor(scores).view(len(problems), -1)
    baselined = (of_group - of_group.mean(1, keepdim=True)).flatten()
    losses["reward"] = -(baselined[:, None] * log_probs * mask).sum() / len(mask)

    probs = torch.softmax(logits.detach(), -1)
    squares = (probs.square().sum(-1) - 2 * old_log_probs.exp() + 1) * plain.square()
    weak = advantages["cw_grpo_unnormalised"].abs() < 0.5 * plain.abs()
    # The least probable where there is a gradient at all: not in a group whose rewards are all alike.
    in_order = old_log_probs.where(plain != 0, torch.inf).flatten().argsort()
    unlikely = torch.zeros_like(weak.flatten()).index_fill(0, in_order[: weak.sum()], True).view_as(weak)
    counts = [weak.sum(), mask.sum(), squares[weak].sum(), squares[mask != 0].sum()]
    counts += [squares[unlikely].sum(), (weak & unlikely).sum()]
    return losses, torch.stack([count.double() for count in counts])


def relative_to(
    squares: np.ndarray, products: np.ndarray, grpo_squares: np.ndarray, grpo_products: np.ndarray
) -> dict[str, float]:
    """What a method's updates are worth next to GRPO's.

    Args:
        squares: (batches,), the squared lengths of the method's gradients.
        products: (batches, batches), scalar products of its gradients (rows) with policy gradients (columns).
        grpo_squares, grpo_products: the same of GRPO.

    Returns:
        All relative to GRPO's: ``length`` of a gradient, root mean square; ``slope``, by which the expected reward
        rises along the mean gradient; ``slope_by_length``, by which it rises along gradients scaled to one length.
    """

    def slope(products: np.ndarray) -> float:
        # A batch's product with itself would count its noise for signal.
        return products[~np.eye(len(products), dtype=bool)].mean()

    length = np.sqrt(squares.mean() / grpo_squares.mean())
    rise = slope(products) / slope(grpo_products)
    return {"length": length, "slope": rise, "slope_by_length": rise / length}


def shares_of(held: np.ndarray) -> dict[str, float]:
    weak, tokens, weak_squares, squares, unlikely_squares, both = held.sum(0)
    return {
        "weak_tokens": weak / tokens,
        "weak_squares": weak_squares / squares,
        "unlikely_squares": unlikely_squares / squares,
        "weak_unlikely": both / weak,
    }


def jackknife(quantities: Callable[[np.ndarray], dict[str, float]], batches: int) -> list[dict[str, str | float]]:
    """Each quantity with its standard error, by leaving out one of BLOCKS blocks of batches at a time."""
    every = np.arange(batches)
    parts = [quantities(every[every % BLOCKS != block]) for block in range(BLOCKS)]
    return [
        {"quantity": name, "value": value, "error": float(np.std([part[name] for part in parts]) * np.sqrt(BLOCKS - 1))}
        for name, value in quantities(every).items()
    ]


if __name__ == "__main__":
    main()
