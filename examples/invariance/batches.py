"""The batch, the ways to cut it, and what several hosts need for it."""

import os
from typing import Any, NamedTuple

import torch

GROUPS, RESPONSES, PROMPT, WIDTH, SEEDS = 4, 4, 4, 24, (0, 1, 2)
ROWS = GROUPS * RESPONSES
SMALL = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "hidden_size": 16, "intermediate_size": 16,
         "num_attention_heads": 2}  # fmt: skip


class Case(NamedTuple):
    """How the batch reaches the gradient: processes, micro-batches of each, columns of padding, order of rows, whether
    the host's own dynamic batch sizes cut it, and the draw of the random number generator."""

    ranks: int = 1
    micro: int = 1
    left: int = 0
    right: int = 0
    shuffled: bool = False
    dynamic: bool = False
    draw: int = 0


CASES = {
    "whole": Case(), "2 micro": Case(micro=2), "4 micro": Case(micro=4), "16 micro": Case(micro=16),
    "2 ranks": Case(ranks=2), "4 ranks": Case(ranks=4), "left": Case(left=5), "right": Case(right=7),
    "order": Case(shuffled=True), "dynamic": Case(dynamic=True), "again": Case(draw=1),
}  # fmt: skip


class Batch(NamedTuple):
    """ROWS responses in groups of RESPONSES; float64 and int64. ``row`` is a row's number in the whole batch."""

    row: torch.Tensor
    group: torch.Tensor
    rewards: torch.Tensor
    advantages: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor
    old: torch.Tensor
    drift: torch.Tensor
    entropies: torch.Tensor
    ids: torch.Tensor

    def in_order(self, values: torch.Tensor) -> torch.Tensor:
        """Values of these rows, in the whole batch's order, without padding on the right."""
        whole = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
        whole[self.row] = values[:, :WIDTH].double() * self.mask
        return whole

    def drifted(self, log_probs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Log-probs before the policy drifted, where ``mask`` has a row's tokens."""
        before = log_probs.clone()
        for row, drift, there in zip(before, self.drift, mask.bool(), strict=True):
            row[there] += drift[: int(there.sum())]
        return before


def make_batch(seed: int, rows: torch.Tensor | None = None) -> Batch:
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


def order_of(case: Case, seed: int, whole_groups: bool = False) -> torch.Tensor:
    """The rows of all processes, in order; seeds the generator. Some hosts need ``whole_groups``, one after another."""
    rows, chance = torch.arange(ROWS), torch.Generator().manual_seed(100 + seed)
    if case.shuffled and whole_groups:
        rows = rows.view(GROUPS, RESPONSES)[torch.randperm(GROUPS, generator=chance)]
        rows = rows[:, torch.randperm(RESPONSES, generator=chance)].flatten()
    elif case.shuffled:
        rows = torch.randperm(ROWS, generator=chance)
    torch.manual_seed(1000 * case.draw + seed)
    return rows


def rows_of(case: Case, seed: int, whole_groups: bool = False) -> torch.Tensor:
    """The rows of this process: equal shares, one after another."""
    return order_of(case, seed, whole_groups).chunk(case.ranks)[int(os.environ["RANK"])]


class KeepsGradient:
    """Mixed into a trainer of transformers: ``gradient`` is that of the update."""

    def create_optimizer(self, *args: Any) -> Any:
        made = super().create_optimizer(*args)
        made.register_step_pre_hook(self.keep)
        return made

    def keep(self, *_: Any) -> None:
        self.gradient = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
