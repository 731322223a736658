"""Draws many answers to the same questions at the price of the different ones."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AttentionInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ONE_TOKEN = "one_token"  # the attn_implementation of a model that is to answer fast on a CPU


def attention_of_one_token(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float, **others: Any
) -> tuple[Tensor, None]:
    """Attention of one new token a row, in two products of small matrices; of more tokens, it is PyTorch's own."""
    rows, heads, tokens, size = query.shape
    if tokens > 1 or attention_mask is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    by_key = query.view(rows, key.shape[1], -1, size)  # the query heads that share a key stand side by side
    weights = (by_key @ key.transpose(-1, -2) * scaling).softmax(-1)
    return (weights @ value).view(rows, tokens, heads, size), None


AttentionInterface.register(ONE_TOKEN, attention_of_one_token)
AttentionMaskInterface.register(ONE_TOKEN, sdpa_mask)


@torch.no_grad()
def sampled_ids(
    model: Any, end: int, prompts: Int[Tensor, "problems tokens"], answers: int, limit: int
) -> Iterator[tuple[int, list[int], int]]:
    """Draw ``answers`` to each prompt, of at most ``limit`` tokens, at temperature 1; the token ``end`` ends one.

    Yields the place of the prompt, the tokens of an answer with its end, and how many of the answers have these tokens.
    Answers that have begun with the same tokens share a row, and so one forward pass, until they differ.
    """
    device = prompts.device
    written, asks, cache = prompts, prompts, DynamicCache()
    problem = torch.arange(len(prompts), device=device)
    copies = torch.full((len(prompts),), answers, device=device)
    for length in range(1, limit + 1):
        logits = model(input_ids=asks, past_key_values=cache, logits_to_keep=1).logits[:, -1].float()
        # As many draws for each row as one may need; a row takes those of its own answers.
        drawn = torch.multinomial(logits.softmax(-1), int(copies.max()), replacement=True)
        needed = torch.arange(drawn.shape[1], device=device) < copies[:, None]
        row_and_token = (torch.arange(len(written), device=device)[:, None] * logits.shape[-1] + drawn)[needed]
        row_and_token, copies = row_and_token.unique(return_counts=True)
        row, token = row_and_token // logits.shape[-1], row_and_token % logits.shape[-1]
        written, problem = torch.cat([written[row], token[:, None]], 1), problem[row]
        ends = (token == end) | (length == limit)
        for at in ends.nonzero()[:, 0]:
            yield int(problem[at]), written[at, prompts.shape[1] :].tolist(), int(copies[at])
        if ends.all():
            return
        written, problem, copies = written[~ends], problem[~ends], copies[~ends]
        asks = written[:, -1:]
        cache.batch_select_indices(row[~ends])


def sampled(
    model: Any, tokenizer: Any, prompts: Int[Tensor, "problems tokens"], answers: int, limit: int
) -> Iterator[tuple[int, str, int]]:
    """The same answers as texts without special tokens."""
    for place, ids, copies in sampled_ids(model, tokenizer.eos_token_id, prompts, answers, limit):
        yield place, tokenizer.decode(ids, skip_special_tokens=True), copies
