"""Whether what a trainer kept has the reference's weights, computed once more by plain transformers."""

import math
from collections import Counter, defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from reference import grpo_advantages, reference_advantages
from reference_weightings import reference_weighted
from transformers import AutoModelForCausalLM
from trl_training import MODEL, reward

LORA = LoraConfig(r=4, lora_dropout=0.3, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def unpadded(batch: dict[str, Any], row: int) -> tuple[tuple[int, ...], tuple[int, ...], list[int], list[float]]:
    """Prompt, completion, and the mask and the advantage of each of its tokens, of one row at the loss."""
    prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
    there = batch["completion_mask"][row].bool()
    mask = (batch["completion_mask"] * batch.get("tool_mask", 1))[row]
    assert not batch["advantages"][row][mask == 0].any()
    tokens, advantages = batch["completion_ids"][row][there], batch["advantages"][row][there]
    return tuple(prompt.tolist()), tuple(tokens.tolist()), mask[there].tolist(), advantages.tolist()


def log_probs_and_entropies(
    policy: dict[str, torch.Tensor], prompt: tuple[int, ...], completion: tuple[int, ...]
) -> tuple[list[float], list[float]]:
    """By plain transformers, one sequence at a time without padding, under the policy that sampled it."""
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    if any("lora" in name for name in policy):
        model = get_peft_model(model, LORA).eval()
    model.load_state_dict(policy)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    all_tokens = F.log_softmax(logits.double(), -1)
    entropies = -(all_tokens.exp() * all_tokens).sum(-1)
    return all_tokens[torch.arange(len(completion)), list(completion)].tolist(), entropies.tolist()


def padded(rows: list[list[float]], width: int) -> torch.Tensor:
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float64)


def certain(weights: str, x: torch.Tensor, a: torch.Tensor, mask: Any, uids: Any, h: torch.Tensor) -> torch.Tensor:
    """Where rounding decides nothing. Tokens with the same tokens before them have the same log-probs and entropies but
    for that, and a weighting may choose some of them."""
    expected, sure = reference_weighted(weights, x, a, mask, uids, h), torch.ones(x.shape, dtype=torch.bool)
    chance = torch.Generator().manual_seed(0)
    for _ in range(5):
        near = [values + 1e-5 * torch.randn(x.shape, generator=chance, dtype=x.dtype) for values in (x, h)]
        sure &= (reference_weighted(weights, near[0], a, mask, uids, near[1]) - expected).abs() < 1e-3
    assert sure[mask != 0].double().mean() > 0.8
    return sure


def check_weights(
    processes: list[dict[str, Any]], rows: int, scope: str = "group", score: Any = reward, weights: str = "gaussian"
) -> list[float]:
    """``rows`` rows reached the loss of all processes, with the reference's weights of their whole groups, whose sigmas
    are returned."""
    batches: dict[int, list[tuple]] = defaultdict(list)
    sigmas: list[float] = []
    for process in processes:
        for batch in process["at_loss"]:
            batches[batch["batch"]] += [unpadded(batch, row) for row in range(len(batch["prompt_ids"]))]
    assert sum(map(len, batches.values())) == rows
    for number, shown in batches.items():
        times = max(Counter(prompt for prompt, *_ in shown).values()) // 4  # a second iteration shows each row again
        of_batch = sorted(shown)[::times]
        assert sorted(of_batch * times) == sorted(shown)
        prompts, completions, masks, found = zip(*of_batch, strict=True)
        a = grpo_advantages(score(completions), prompts, 1e-4)  # NaN for one without a score, which is not trained on
        masks = [[0] * len(mask) if math.isnan(value) else mask for mask, value in zip(masks, a, strict=True)]
        x, h = zip(
            *(log_probs_and_entropies(processes[0]["policies"][number], *row[:2]) for row in of_batch), strict=True
        )
        uids = prompts if scope == "group" else [0] * len(x)
        sigmas += [group["sigma"] for group in reference_advantages(x, a, masks, uids)[1].values()]
        width = max(map(len, masks))
        of_tokens = (padded(x, width), torch.tensor(a), padded(masks, width), uids, padded(h, width))
        expected, sure = reference_weighted(weights, *of_tokens), certain(weights, *of_tokens)
        torch.testing.assert_close(padded(found, width)[sure], expected[sure], atol=3e-5, rtol=3e-5)
    return sigmas


def same(first: Any, second: Any) -> bool:
    """Whether two trainers end with the same parameters, bit for bit."""
    one, two = first.model.state_dict(), second.model.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
