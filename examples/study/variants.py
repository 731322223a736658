"""The weightings of z = c / sigma that the studies put in place of the paper's: ``weights=variants:width_2``."""

import torch
from torch import Tensor

from cw_plugin.registry import Weighting, weighting
from cw_plugin.weights import Group, kernel


def wider(times: int) -> Weighting:
    @weighting(scaled=True)
    def wide(group: Group) -> Tensor:
        return kernel(group.z / times)

    return wide


width_2, width_3, width_4 = wider(2), wider(3), wider(4)


@weighting(scaled=True)
def negative(group: Group) -> Tensor:
    """On negative covariances only; w is 1 for the others."""
    return kernel(group.z.clamp(max=0))


@weighting(scaled=True)
def positive(group: Group) -> Tensor:
    return kernel(group.z.clamp(min=0))


@weighting(scaled=True)
def shuffled(group: Group) -> Tensor:
    """The paper's weights, each on a token of the group drawn at random: as many small weights, on the wrong tokens."""
    return kernel(group.z)[torch.randperm(len(group.z), generator=group.generator)]
