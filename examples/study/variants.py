"""The kernels w(z), z = c / sigma, that the studies put in place of the paper's: ``kernel=variants:width_2``."""

from collections.abc import Callable

import torch
from torch import Tensor

from cw_plugin.weights import gaussian


def wider(times: int) -> Callable[[Tensor], Tensor]:
    return lambda z: gaussian(z / times)


width_2, width_3, width_4 = wider(2), wider(3), wider(4)


def negative(z: Tensor) -> Tensor:
    """On negative covariances only; w is 1 for the others."""
    return gaussian(z.clamp(max=0))


def positive(z: Tensor) -> Tensor:
    return gaussian(z.clamp(min=0))


def shuffled(z: Tensor) -> Tensor:
    """The paper's weights, each on a token of the group drawn at random: as many small weights, on the wrong tokens."""
    return gaussian(z)[torch.randperm(len(z))]
