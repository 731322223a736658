"""What the two studies put in place of the paper's weights. None of it is an option of the plugin.

Kernels of z = c / sigma, as ``cw_plugin.kernels`` takes them ("variants:width_2"); and two changes that no kernel can
make, which take the place of ``cw_plugin.weights.reweight`` (ablation.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cw_plugin.weights import CovarianceStatistics, gaussian, reweight


def width_2(z: Tensor) -> Tensor:
    return gaussian(z / 2)


def width_3(z: Tensor) -> Tensor:
    return gaussian(z / 3)


def width_4(z: Tensor) -> Tensor:
    return gaussian(z / 4)


def negative(z: Tensor) -> Tensor:
    """On negative covariances only; w is 1 for the others."""
    return gaussian(z.clamp(max=0))


def positive(z: Tensor) -> Tensor:
    return gaussian(z.clamp(min=0))


def shuffled(z: Tensor) -> Tensor:
    """The paper's weights, each on a token of the group drawn at random: as many small weights, on the wrong tokens."""
    return gaussian(z)[torch.randperm(len(z))]


def uncentred(
    log_probs: Tensor, advantages: Tensor, response_mask: Tensor, group: Tensor, kernel: str = "gaussian"
) -> tuple[Tensor, CovarianceStatistics]:
    """The kernel of log pi A, without the means. The statistics are those of the paper's weights.

    Each token stands in its group once more, with both signs turned. So both means are 0, and nothing else changes.
    """
    _, statistics = reweight(log_probs, advantages, response_mask, group, kernel)
    turned = [torch.cat([values, -values]) for values in (log_probs, advantages)]
    same = [torch.cat([values, values]) for values in (response_mask, group)]
    return reweight(*turned, *same, kernel)[0][: len(log_probs)], statistics


def unnormalised(
    log_probs: Tensor, advantages: Tensor, response_mask: Tensor, group: Tensor, kernel: str = "gaussian"
) -> tuple[Tensor, CovarianceStatistics]:
    """w in place of w~: the weights of a group no longer average 1. The statistics are those of the paper's weights."""
    weighted, statistics = reweight(log_probs, advantages, response_mask, group, kernel)
    for number in group.unique():
        rows = group == number
        weighted[rows] *= reweight(log_probs[rows], advantages[rows], response_mask[rows], kernel=kernel)[1].weight_mean
    return weighted, statistics
