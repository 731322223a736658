"""Batches for the mathematics and for the records."""

import torch


def random_batch(
    seed: int, groups: int = 5, responses: int = 6, width: int = 40, scale: float = 1.0, holes: float = 0.1
):
    """Ragged rows of shuffled groups, masks with holes, verl-like log-probs (rows, width) and advantages (rows,)."""
    g = torch.Generator().manual_seed(seed)
    rows = groups * responses
    group = torch.arange(rows)[torch.randperm(rows, generator=g)] % groups
    lengths = torch.randint(1, width + 1, (rows,), generator=g)
    mask = (torch.arange(width) < lengths[:, None]) & (torch.rand(rows, width, generator=g) >= holes)
    log_probs = -scale * torch.rand(rows, width, generator=g).exp().sub(1).pow(3)
    advantages = torch.randn(rows, generator=g)
    return log_probs, advantages, mask, group


def random_entropies(seed: int, shape: torch.Size, scale: float = 1.0) -> torch.Tensor:
    """Entropies (rows, width) in nats, most of them small."""
    return -scale * torch.rand(shape, generator=torch.Generator().manual_seed(1000 + seed)).log()
