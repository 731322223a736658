"""Variants of the weights for the study's ablation: cw_grpo with one part of the method changed.

None of them is an option of the plugin. ablation.py has verl train with one, gradients.py looks where its updates
point.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cw_plugin.weights import CovarianceStatistics, reweight_responses


def uncentred(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """The kernel of log pi A, without the means."""
    return kernel(log_probs * advantages)


def unnormalised(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """w in place of w~: the weights of a group no longer average 1."""
    return kernel(covariance(log_probs, advantages))


def shuffled(log_probs: Tensor, advantages: Tensor) -> Tensor:
    """The paper's weights, each on a token of the group drawn at random: as many small weights, on the wrong tokens."""
    w = kernel(covariance(log_probs, advantages))
    return w[torch.randperm(len(w))]


def covariance(log_probs: Tensor, advantages: Tensor) -> Tensor:
    return (log_probs - log_probs.mean()) * (advantages - advantages.mean())


def kernel(c: Tensor) -> Tensor:
    sigma = c.std(correction=0)
    return torch.exp(-c.square() / (2 * sigma.square())) if sigma > 0 else torch.ones_like(c)


VARIANTS = {"uncentred": uncentred, "unnormalised": unnormalised, "shuffled": shuffled}


def reweight(
    variant: str,
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    group: Tensor,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, CovarianceStatistics]:
    """As cw_plugin.weights.reweight_responses. Statistics and records stay those of the paper's weights, but for the
    covariance after reweighting."""
    _, statistics = reweight_responses(log_probs, advantages, response_mask, group, *args, **kwargs)
    result = torch.zeros_like(log_probs, dtype=torch.float64)
    after = 0.0
    for number in group.unique():
        tokens = (response_mask != 0) & (group == number)[:, None]
        x = log_probs[tokens].double()
        a = advantages[:, None].expand_as(log_probs)[tokens].double()
        w = VARIANTS[variant](x, a)
        if variant != "unnormalised":
            w = w * len(w) / w.sum()
        result[tokens] = w * a
        after += float(((x - x.mean()) * w * a).sum())
    covariance_after = after / int((response_mask != 0).sum())
    return result.to(log_probs.dtype), replace(statistics, covariance_after=covariance_after)
