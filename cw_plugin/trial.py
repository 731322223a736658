"""Tries a weighting on a small group before a run begins, so that it does not fail after the first rollouts."""

import torch

from cw_plugin.errors import NonFiniteError, OptionsError
from cw_plugin.registry import Weighting
from cw_plugin.reweight import reweight

LENGTHS = (7, 3, 5, 1)  # of the group's responses; two have the same advantage, and some values are equal


def try_weighting(weighting: Weighting) -> None:
    """Raise OptionsError if a weighting fails on a made group, or returns what cannot be weights, or others again."""
    numbers = torch.Generator().manual_seed(0)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    log_probs = -torch.rand(mask.shape, generator=numbers).round(decimals=1)
    entropies = torch.rand(mask.shape, generator=numbers).round(decimals=1)
    advantages = torch.tensor([1.5, -0.5, -0.5, -0.5])
    order = torch.arange(len(mask)).flip(0)
    try:
        once, _ = reweight(log_probs, advantages, mask, weights=weighting, entropies=entropies, step=1)
        again, _ = reweight(
            log_probs[order], advantages[order], mask[order], weights=weighting, entropies=entropies[order], step=1
        )
    except NonFiniteError as error:
        problem = f"weights={weighting.name!r} returned weights that are too large"
        raise OptionsError(problem, fix="make them smaller") from error
    if not torch.equal(once[order], again):
        raise OptionsError(
            f"weights={weighting.name!r} gave a group other weights when it was asked again",
            fix="let them depend on the group alone, and draw with group.generator",
        )
