"""The weights of CW-GRPO: the paper's equations in plain PyTorch.

Source: "Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting", section 2.3.
For every prompt group g, over its N valid response tokens (response i, position t)::

    c_it  = (log pi_it - mean(log pi)) * (A_i - mean(A))        covariance of a token
    w_it  = exp(-c_it^2 / (2 sigma^2)),  sigma = std of {c_it}  Gaussian kernel
    w~_it = w_it * N / sum(w)                                   weights average 1 over the group

and the policy is trained on w~_it * A_i. No gradient flows through the weights.

Where the paper is silent:

* Both means run over tokens, not responses, so that mean(c) is exactly the token covariance whose sign drives entropy
  (Delta H ~ -eta Cov) and a long response counts for every token it has.
* sigma divides by N (ddof 0): the paper calls it the empirical deviation of the set {c_it}, and that is defined for one
  token too. Against ddof 1 it changes sigma by a factor 1 - 1/(2N), one part in 10^4 for a group of 5,000 tokens.
* sigma = 0 (equal rewards, one token, equal log-probs): no token is more extreme than another, so w = w~ = 1. So it is
  when |mean(c)| >= 10 sigma: all covariances are alike, and w would underflow to 0 / 0 for all of them. That takes a
  group of very few tokens (with two, sigma is always 0). Sums run in float64, so that equal inputs give exactly 0.
* A group without a valid token has weight 0 everywhere and takes no part in the statistics.

This module imports nothing but torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cw_plugin.errors import NonFiniteError, OptionsError

Kernel = Literal["gaussian", "none"]

# Rows are taken in blocks whose temporaries fit a CPU core's cache. That bounds the extra memory as well: one tensor of
# the batch's size (the result) and a few blocks. A GPU wants few, large launches instead.
_BLOCK_ELEMENTS = {"cpu": 2**18}
_BLOCK_ELEMENTS_ACCELERATOR = 2**24

_UNIFORM = 10.0  # |mean(c)| / sigma from which on a group's covariances count as alike (module docstring)
_TINY = torch.finfo(torch.float64).tiny  # keeps 0 / 0 of an empty group at 0


@dataclass(frozen=True)
class CovarianceStatistics:
    """What the weights did, over all valid tokens of the batch; every field is a 0-d tensor.

    ``w`` is the kernel before normalisation. With ``kernel="none"`` it is 1, and the covariances are plain GRPO's.
    """

    sigma: Tensor  # mean of sigma over the groups with a signal; 0 if there is none
    signal_share: Tensor  # share of groups (with a valid token) whose covariances differ: those that are reweighted
    weight_mean: Tensor  # mean of w
    weight_min: Tensor  # smallest w
    effective_sample_share: Tensor  # (sum w)^2 / (N sum w^2) of a group, averaged over tokens
    downweighted_share: Tensor  # share of tokens with w < 0.5
    covariance_before: Tensor  # Cov(log pi, A) within a group, averaged over tokens
    covariance_after: Tensor  # Cov(log pi, w~ A) within a group, averaged over tokens
    covariance_max: Tensor  # largest c_it
    covariance_min: Tensor  # smallest (most negative) c_it


@torch.no_grad()
def covariance_weights(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, "rows time"] | Float[Tensor, "rows 1"],
    response_mask: Bool[Tensor, "rows time"] | Int[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    kernel: Kernel = "gaussian",
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """Normalised weights w~ of every token (module docstring), and what they did.

    Args:
        log_probs: log pi of each sampled token, in nats; any float dtype, accumulated in float32 at least. Values
            where ``response_mask`` is 0 are never read.
        advantages: the group-relative advantages; one column when each response has a single advantage, as in GRPO.
        response_mask: 1 where a token belongs to the response, else 0. Holes are allowed.
        group: for each row the number of its prompt group, 0 <= group < rows; ``None`` makes the batch one group.
        kernel: ``"none"`` gives weight 1 to every valid token and records the same statistics.

    Returns:
        Weights (float32; float64 for float64 log-probs), 0 where the mask is 0, and the statistics.

    Raises:
        NonFiniteError: a valid token has a NaN or infinite log-prob or advantage; the message names the rows.
        OptionsError: unknown kernel.
        ValueError: shapes that do not belong together.
    """
    rows, time = _check_arguments(log_probs, advantages, response_mask, group, kernel)
    if time == 0:  # nothing to reduce over; one masked column gives the same statistics
        pad = log_probs.new_zeros(rows, 1)
        weights, statistics = covariance_weights(pad, pad, pad, group, kernel)
        return weights[:, :0], statistics
    device, dtype = log_probs.device, torch.promote_types(log_probs.dtype, torch.float32)
    log_probs = _finite_on_mask("log_probs", log_probs, response_mask)
    advantages = _finite_on_mask("advantages", advantages, response_mask)
    groups = _Groups(torch.zeros(rows, dtype=torch.long) if group is None else group, rows, device, dtype)

    def blocks() -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        size = max(1, _BLOCK_ELEMENTS.get(device.type, _BLOCK_ELEMENTS_ACCELERATOR) // max(time, 1))
        for start in range(0, rows, size):
            block = slice(start, start + size)
            yield block, log_probs[block].to(dtype), advantages[block].to(dtype), response_mask[block].to(dtype)

    # mean(log pi), mean(A)
    n, log_prob_sum, advantage_sum = torch.zeros(3, rows, dtype=torch.float64, device=device)
    for block, log_prob, advantage, mask in blocks():
        n[block] = mask.sum(-1).double()
        log_prob_sum[block] = (log_prob * mask).sum(-1, dtype=torch.float64)
        if advantage.shape[1] == 1:
            advantage_sum[block] = n[block] * advantage[:, 0]
        else:
            advantage_sum[block] = (advantage * mask).sum(-1, dtype=torch.float64)
    N = groups.sum(n)
    log_prob_mean = groups.spread(groups.sum(log_prob_sum) / N.clamp(min=1))
    advantage_mean = groups.spread(groups.sum(advantage_sum) / N.clamp(min=1))

    # c = (log pi - mean(log pi)) (A - mean(A)); sigma from the deviations within each row and between rows, which loses
    # no precision where the squares of c would
    weights = torch.empty(rows, time, dtype=dtype, device=device)  # holds c, then w, then w~
    c_sum, c_deviation, c_max, c_min = torch.zeros(4, rows, dtype=torch.float64, device=device)
    for block, log_prob, advantage, mask in blocks():
        c = torch.sub(log_prob, log_prob_mean[block], out=weights[block])
        c.mul_(advantage - advantage_mean[block]).mul_(mask)
        c_sum[block] = c.sum(-1, dtype=torch.float64)
        c_max[block], c_min[block] = c.amax(-1).double(), c.amin(-1).double()
        c_row_mean = (c_sum[block] / n[block].clamp(min=1)).to(dtype)[:, None]
        c_deviation[block] = torch.linalg.vector_norm(c - mask * c_row_mean, dim=-1).double().square()
    c_mean = groups.sum(c_sum) / N.clamp(min=1)
    c_deviation += n * (c_sum / n.clamp(min=1) - c_mean[groups.index]).square()
    variance = groups.sum(c_deviation) / N.clamp(min=1)  # sigma^2

    # w = exp(-c^2 / (2 sigma^2)) = exp(-(c / (sqrt(2) sigma))^2)
    sigma = variance.sqrt()
    uniform = (c_mean.abs() >= _UNIFORM * sigma) | (sigma < torch.finfo(torch.float32).tiny)
    scale = torch.where(uniform, 0.0, 1 / (math.sqrt(2) * sigma)) if kernel == "gaussian" else torch.zeros_like(sigma)
    row_scale = groups.spread(scale)
    w_sum, w_square_sum, w_high, covariance_after = torch.zeros(4, rows, dtype=torch.float64, device=device)
    for block, log_prob, advantage, mask in blocks():
        w = weights[block].mul_(row_scale[block]).square_().neg_().exp_().mul_(mask)
        w_sum[block] = w.sum(-1).double()
        w_square_sum[block] = torch.linalg.vector_norm(w, dim=-1).double().square()
        w_high[block] = torch.ge(w, 0.5).to(dtype).sum(-1).double()
        wa = w * advantage
        covariance_after[block] = (torch.linalg.vecdot(log_prob, wa) - log_prob_mean[block, 0] * wa.sum(-1)).double()

    # w~ = w N / sum(w)
    w_total = groups.sum(w_sum)
    normaliser = N / w_total.clamp(min=_TINY)
    weights.mul_(groups.spread(normaliser))

    c_size = torch.maximum(c_max, -c_min)
    zero, tokens = N.sum() * 0, N.sum().clamp(min=1)
    effective_tokens = w_total.square() / groups.sum(w_square_sum).clamp(min=_TINY)
    statistics = CovarianceStatistics(
        sigma=(sigma * ~uniform).sum() / (~uniform).sum().clamp(min=1),
        signal_share=(~uniform).sum() / (N > 0).sum().clamp(min=1),
        weight_mean=w_sum.sum() / tokens,
        weight_min=(scale[groups.index] * c_size).square().neg().exp().min() if rows else zero,
        effective_sample_share=effective_tokens.sum() / tokens,
        downweighted_share=(n - w_high).sum() / tokens,
        covariance_before=c_sum.sum() / tokens,
        covariance_after=(covariance_after * normaliser[groups.index]).sum() / tokens,
        covariance_max=c_max.max() if rows else zero,
        covariance_min=c_min.min() if rows else zero,
    )
    return weights, statistics


class _Groups:
    """Sums over the rows of each group, and back to the rows; in float64, so that the order of rows does not matter."""

    def __init__(self, index: Int[Tensor, " rows"], rows: int, device: torch.device, dtype: torch.dtype):
        self.index, self.size, self.dtype = index.to(device=device, dtype=torch.long), max(rows, 1), dtype

    def sum(self, per_row: Float[Tensor, " rows"]) -> Float[Tensor, " groups"]:
        return per_row.new_zeros(self.size).index_add_(0, self.index, per_row)

    def spread(self, per_group: Float[Tensor, " groups"]) -> Float[Tensor, "rows 1"]:
        return per_group[self.index, None].to(self.dtype)


def _finite_on_mask(what: str, values: Tensor, response_mask: Tensor) -> Tensor:
    """``values``, with 0 for what is not finite off the mask (NaN * 0 is NaN). Raises NonFiniteError for the rest."""
    if torch.isfinite(values.sum(dtype=torch.promote_types(values.dtype, torch.float32))):
        return values
    valid = response_mask != 0 if values.shape == response_mask.shape else (response_mask != 0).any(-1, keepdim=True)
    values = values.masked_fill(~valid, 0)
    bad = (~torch.isfinite(values)).any(-1)
    if bad.any():
        raise NonFiniteError(what, bad.nonzero().flatten().tolist())
    return values


def _check_arguments(log_probs, advantages, response_mask, group, kernel) -> tuple[int, int]:
    if kernel not in get_args(Kernel):
        raise OptionsError(f"kernel={kernel!r} is unknown; use one of {', '.join(get_args(Kernel))}")
    if log_probs.ndim != 2 or response_mask.shape != log_probs.shape:
        raise ValueError(
            f"log_probs {tuple(log_probs.shape)} and response_mask {tuple(response_mask.shape)} must be (rows, time)"
        )
    rows, time = log_probs.shape
    if advantages.shape not in ((rows, time), (rows, 1)):
        raise ValueError(f"advantages {tuple(advantages.shape)} must be ({rows}, {time}) or ({rows}, 1)")
    if group is not None and (group.shape != (rows,) or (rows and not 0 <= group.min() <= group.max() < rows)):
        raise ValueError(f"group must hold one number below {rows} for each of the {rows} rows")
    return rows, time
