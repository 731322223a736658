"""Tries a weighting on two small groups before a run begins, so that it does not fail after the first rollouts."""

import torch

from cw_plugin.errors import NonFiniteError, OptionsError
from cw_plugin.registry import Weighting
from cw_plugin.reweight import reweight

LENGTHS = (7, 3, 5, 1)  # of the responses of each group; some values are equal
ADVANTAGES = (1.5, -0.5, -0.5, -0.5) + (0.0,) * 4  # the second group has equal rewards, as where every answer is right


def try_weighting(weighting: Weighting) -> None:
    """Raise OptionsError if a weighting fails on made groups, or returns what cannot be weights.

    Weights must also be the same when it is asked again, with the rows in another order.
    """
    numbers = torch.Generator().manual_seed(0)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS * 2)[:, None]
    log_probs = -torch.rand(mask.shape, generator=numbers).round(decimals=1)
    entropies = torch.rand(mask.shape, generator=numbers).round(decimals=1)
    advantages, group = torch.tensor(ADVANTAGES), torch.arange(len(mask)) // len(LENGTHS)
    order = torch.arange(len(mask)).flip(0)
    try:
        once, _ = reweight(log_probs, advantages, mask, group, weighting, entropies, step=1)
        again, _ = reweight(
            log_probs[order], advantages[order], mask[order], group[order], weighting, entropies[order], step=1
        )
    except NonFiniteError as error:
        problem = f"weights={weighting.name!r} returned weights that are too large"
        raise OptionsError(problem, fix="make them smaller") from error
    if not torch.equal(once[order], again):
        raise OptionsError(
            f"weights={weighting.name!r} gave a group other weights when it was asked again",
            fix="let them depend on the group alone, and draw with group.generator",
        )
