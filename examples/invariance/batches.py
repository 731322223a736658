"""The batch, and the ways to cut it."""

import os
from collections import namedtuple

import torch
from torch.nn.functional import pad

GROUPS, RESPONSES, PROMPT, WIDTH, SEEDS = 4, 4, 4, 24, (0, 1, 2)
ROWS = GROUPS * RESPONSES
TOKENS = 2 * (PROMPT + WIDTH)  # that a micro-batch may have, if the host's own dynamic batch sizes cut it
SMALL = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "hidden_size": 16, "intermediate_size": 16,
         "num_attention_heads": 2}  # fmt: skip

# How the batch reaches the gradient: processes, micro-batches of each, columns of padding, order of rows, whether the
# host's own dynamic batch sizes cut it, and the draw of the random number generator.
Case = namedtuple("Case", "ranks micro left right shuffled dynamic draw", defaults=(1, 1, 0, 0, False, False, 0))
CASES = {
    "whole": Case(), "2 micro": Case(micro=2), "4 micro": Case(micro=4), "16 micro": Case(micro=16),
    "2 ranks": Case(ranks=2), "4 ranks": Case(ranks=4), "left": Case(left=5), "right": Case(right=7),
    "order": Case(shuffled=True), "dynamic": Case(dynamic=True), "again": Case(draw=1),
}  # fmt: skip


class NotOfferedError(Exception):
    """The host has no such way to cut a batch, or computes this row in one process, from the whole batch."""


# Tensors of the same rows; those of tokens are (rows, WIDTH). ``row`` is a row's number in the whole batch, ``old`` are
# log-probs, and ``drift`` is how much they have changed since the policy that sampled the responses.
Batch = namedtuple("Batch", "row group rewards advantages lengths mask old drift entropies ids")


def make_batch(seed: int, rows: torch.Tensor | None = None) -> Batch:
    """ROWS responses in groups of RESPONSES, or these ``rows`` of them, in their order; float64 and int64."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, WIDTH + 1, (ROWS,), generator=g)
    lengths[0] = WIDTH
    rewards = torch.randint(0, 4, (GROUPS, RESPONSES), generator=g).double()
    rewards[:, 0] = 5 + torch.arange(GROUPS)  # every group has a signal
    advantages = (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)
    number, shape = torch.arange(ROWS), (ROWS, WIDTH)
    random = [torch.rand(shape, generator=g, dtype=torch.float64) for _ in range(2)]
    drift = 0.3 * torch.randn(shape, generator=g, dtype=torch.float64)
    ids = torch.randint(5, 60, (ROWS, PROMPT + WIDTH), generator=g)
    mask = torch.arange(WIDTH) < lengths[:, None]
    whole = Batch(number, number // RESPONSES, rewards.flatten(), advantages.flatten(), lengths, mask,
                  -3 * random[0] ** 2, drift, random[1], ids)  # fmt: skip
    return whole if rows is None else Batch(*(values[rows] for values in whole))


def ordered(case: Case, seed: int, whole_groups: bool = False) -> torch.Tensor:
    """The rows of all processes, in order. Some hosts need ``whole_groups``, one after another."""
    rows, chance = torch.arange(ROWS), torch.Generator().manual_seed(100 + seed)
    if not case.shuffled:
        return rows
    if whole_groups:
        groups = rows.view(GROUPS, RESPONSES)[torch.randperm(GROUPS, generator=chance)]
        return groups[:, torch.randperm(RESPONSES, generator=chance)].flatten()
    return torch.randperm(ROWS, generator=chance)


def share(case: Case, seed: int, whole_groups: bool = False) -> Batch:
    """The batch of this process: equal shares, one after another."""
    return make_batch(seed, ordered(case, seed, whole_groups).chunk(case.ranks)[int(os.environ["RANK"])])


def drifted(log_probs: torch.Tensor, drift: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Log-probs before the policy drifted, as wide as ``mask``; responses begin in the first column."""
    width = mask.shape[1]
    return pad(log_probs, (0, width - log_probs.shape[1])) + pad(drift, (0, width - WIDTH)) * mask


def in_order(batch: Batch, values: torch.Tensor) -> torch.Tensor:
    """Values of these rows, in the whole batch's order, without padding on the right."""
    whole = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    whole[batch.row] = values[:, :WIDTH].double() * batch.mask
    return whole
