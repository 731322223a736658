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
  group of very few tokens (with two, sigma is always 0). The means of log pi and A are taken in float64, so that equal
  inputs give c = 0 exactly.
* A group without a valid token has weight 0 everywhere and takes no part in the statistics.

:func:`reweight_tokens` is these equations as they stand, for one group whose tokens may each have an advantage of their
own. :func:`reweight_responses` computes the same for many groups at once, with one advantage to a response as in GRPO.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from cw_plugin.errors import NonFiniteError, OptionsError

Kernel = Literal["gaussian", "none"]

# Called with a block of rows, c_it and w~_it of these rows, (rows, time) each; see reweight_responses.
Observer = Callable[[slice, Tensor, Tensor], None]

# reweight_responses takes rows in blocks, so that temporaries stay in a CPU's cache and extra memory is bounded to
# the result and a few blocks. A GPU wants few, large launches instead.
_BLOCK_ELEMENTS = 2**20
_BLOCK_ELEMENTS_ACCELERATOR = 2**24

_TINY = torch.finfo(torch.float64).tiny  # keeps 0 / 0 of an empty group at 0
_VANISHING = 1e-15  # sigma beneath counts as 0: c^2 would leave the range of float32
_UNIFORM = 10.0  # |mean(c)| / sigma from which on a group's covariances count as alike (module docstring)


@dataclass(frozen=True)
class CovarianceStatistics:
    """What the weights did, over all valid tokens.

    ``w`` is the kernel before normalisation. With ``kernel="none"`` it is 1, and the covariances are plain GRPO's.
    """

    sigma: float  # mean of sigma over the groups with a signal; 0 if there is none
    signal_share: float  # share of groups (with a valid token) whose covariances differ: those that are reweighted
    weight_mean: float  # mean of w
    weight_min: float  # smallest w
    effective_sample_share: float  # (sum w)^2 / (N sum w^2) of a group, averaged over tokens
    downweighted_share: float  # share of tokens with w < 0.5
    covariance_before: float  # Cov(log pi, A) within a group, averaged over tokens
    covariance_after: float  # Cov(log pi, w~ A) within a group, averaged over tokens
    covariance_max: float  # largest c_it, 0 if none is positive
    covariance_min: float  # most negative c_it, 0 if none is negative


@torch.no_grad()
def reweight_tokens(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    kernel: Kernel = "gaussian",
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token, all rows together being one group.

    Args:
        log_probs: log pi of each sampled token, in nats, any float dtype; computed in float32 at least, summed in
            float64. What stands where ``response_mask`` is 0 does not matter.
        advantages: one to a token.
        response_mask: 1 where a token belongs to the response, else 0, of any dtype. Holes are allowed.
        kernel: ``"none"`` gives every valid token weight 1 and records the same statistics.

    Returns:
        The reweighted advantages, 0 where the mask is 0, and the statistics.

    Raises:
        NonFiniteError: a valid token has a NaN or infinite log-prob or advantage; the message names the rows.
        OptionsError: unknown kernel.
        ValueError: shapes that do not belong together.
    """
    _check_arguments(log_probs, response_mask, kernel, advantages=(advantages, log_probs.shape))
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    x, a, mask = log_probs.to(dtype), advantages.to(dtype), response_mask.to(dtype)

    masked = x * mask
    n, x_sum, a_sum = _to_host(*(values.sum(dtype=torch.float64) for values in (mask, masked, a * mask)))
    if not math.isfinite(x_sum + a_sum):
        x, a = _clear_off_mask(response_mask, log_probs=x, advantages=a)
        return reweight_tokens(x, a, response_mask, kernel)
    N = max(n, 1)

    centred = masked.sub_(mask, alpha=x_sum / N)
    c = (a - a_sum / N).mul_(centred)
    c_squares = c.square()
    c_sum, c_square_sum = _to_host(c.sum(), c_squares.sum())
    c_mean = c_sum / N
    sigma = math.sqrt(max(c_square_sum / N - c_mean**2, 0))
    signal = sigma >= _VANISHING and abs(c_mean) < _UNIFORM * sigma

    slope = -0.5 / sigma**2 if signal and kernel == "gaussian" else 0.0
    w = torch.mul(c_squares, slope).exp_().mul_(mask)
    wa = w * a
    wax = torch.dot(wa.flatten(), centred.flatten())
    c_min_max = torch.aminmax(c) if c.numel() else (wax, wax)
    w_sum, w_norm, w_high, wax_sum, c_min, c_max = _to_host(
        w.sum(), torch.linalg.vector_norm(w), torch.ge(w, 0.5, out=c_squares).sum(), wax, *c_min_max
    )
    normaliser = N / w_sum if n else 0.0
    return wa.mul_(normaliser), CovarianceStatistics(
        sigma=sigma if signal else 0.0,
        signal_share=float(signal),
        weight_mean=w_sum / N,
        weight_min=math.exp(slope * max(c_max, -c_min) ** 2),
        effective_sample_share=w_sum**2 / (N * w_norm**2) if n else 0.0,
        downweighted_share=(n - w_high) / N,
        covariance_before=c_mean,
        covariance_after=wax_sum * normaliser / N,
        covariance_max=max(c_max, 0.0),
        covariance_min=min(c_min, 0.0),
    )


@torch.no_grad()
def reweight_responses(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    kernel: Kernel = "gaussian",
    observe: Observer | None = None,
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token, with one advantage to a response and statistics by group.

    With A_i constant in a row, c is linear in log pi there, so that mean(c) and sigma follow from mean and spread of
    each row's log-probs, and the batch is read twice instead of four times.

    Args:
        log_probs, response_mask, kernel: as in :func:`reweight_tokens`.
        advantages: one to a response, as GRPO gives them.
        group: for each row the number of its prompt group, 0 <= group < rows; ``None`` makes the batch one group.
        observe: called with c and w~ of every block of rows, 0 where the mask is 0, for those who record them.

    Returns:
        The reweighted advantages (float32; float64 for float64 log-probs), 0 where the mask is 0, and the statistics.

    Raises:
        NonFiniteError, OptionsError, ValueError: as in :func:`reweight_tokens`.
    """
    rows, time = log_probs.shape if log_probs.ndim == 2 else (0, 0)
    _check_arguments(log_probs, response_mask, kernel, advantages=(advantages, (rows,)))
    if group is None:
        group = torch.zeros(rows, dtype=torch.long)
    elif group.shape != (rows,) or (rows and not 0 <= group.min() <= group.max() < rows):
        raise ValueError(f"group must hold one number below {rows} for each of the {rows} rows")
    device, dtype = log_probs.device, torch.promote_types(log_probs.dtype, torch.float32)
    group = group.to(device=device, dtype=torch.long)

    def group_sum(per_row: Float[Tensor, " rows"]) -> Float[Tensor, " groups"]:
        return per_row.new_zeros(max(rows, 1)).index_add_(0, group, per_row)

    # Of each row: tokens, sum of log pi, and around its mean the sum of squares and the extremes.
    n, x_sum, x_squares, x_max, x_min = torch.zeros(5, rows, dtype=torch.float64, device=device)
    for block in _row_blocks(rows, time, device):
        mask = response_mask[block].to(dtype, copy=True)
        x = log_probs[block] * mask
        n[block], x_sum[block] = mask.sum(-1).double(), x.sum(-1, dtype=torch.float64)
        x -= mask.mul_((x_sum[block] / n[block].clamp(min=1)).to(dtype)[:, None])
        x_squares[block] = torch.linalg.vector_norm(x, dim=-1).double().square()
        x_max[block], x_min[block] = x.amax(-1).double(), x.amin(-1).double()
    a = torch.where(n > 0, advantages.double(), 0.0)
    if not torch.isfinite(x_sum.sum() + a.sum()):
        column = advantages[:, None].expand_as(log_probs)
        log_probs, _ = _clear_off_mask(response_mask, log_probs=log_probs, advantages=column)
        return reweight_responses(log_probs, advantages, response_mask, group, kernel, observe)

    # mean(log pi), mean(A); then c of each row, its mean and sigma
    N = group_sum(n)
    x_mean = group_sum(x_sum) / N.clamp(min=1)
    a_mean = group_sum(a * n) / N.clamp(min=1)
    row_offset = x_sum / n.clamp(min=1) - x_mean[group]
    # The mean of float64 sums of equal float32 values is exact; the cast keeps it so for the difference.
    a_centred = (a.to(dtype) - a_mean[group].to(dtype)).double()
    c_row_mean = a_centred * row_offset
    c_mean = group_sum(n * c_row_mean) / N.clamp(min=1)
    c_squares = a_centred.square() * x_squares + n * (c_row_mean - c_mean[group]).square()
    sigma = (group_sum(c_squares) / N.clamp(min=1)).sqrt()
    c_ends = torch.stack([a_centred * (x_max + row_offset), a_centred * (x_min + row_offset)])
    c_ends = torch.where(n > 0, c_ends, 0.0)

    # w = exp(-(c / (sqrt(2) sigma))^2)
    signal = (sigma >= _VANISHING) & (c_mean.abs() < _UNIFORM * sigma)
    scale = torch.where(signal, 1 / (math.sqrt(2) * sigma), 0.0) if kernel == "gaussian" else torch.zeros_like(sigma)
    slope = (a_centred * scale[group]).to(dtype)[:, None]
    centre = x_mean[group].to(dtype)[:, None]
    result = torch.empty(rows, time, dtype=dtype, device=device)
    w_sum, w_squares, w_high, wx_sum = torch.zeros(4, rows, dtype=torch.float64, device=device)
    for block in _row_blocks(rows, time, device):
        mask = response_mask[block].to(dtype, copy=True)
        x = log_probs[block].to(dtype)
        w = torch.sub(x, centre[block], out=result[block]).mul_(slope[block]).square_().neg_().exp_().mul_(mask)
        w_sum[block] = w.sum(-1).double()
        w_squares[block] = torch.linalg.vector_norm(w, dim=-1).double().square()
        wx_sum[block] = torch.linalg.vecdot(w, x).double()
        w_high[block] = torch.ge(w, 0.5, out=mask).sum(-1).double()

    # w~ A = w A N / sum(w)
    normaliser = N / group_sum(w_sum).clamp(min=_TINY)
    for block in _row_blocks(rows, time, device):
        if observe is None:
            break
        c = (log_probs[block].to(dtype) - centre[block]).mul_(a_centred[block].to(dtype)[:, None])
        weights = result[block] * normaliser[group[block]].to(dtype)[:, None]  # result is still w
        observe(block, c.mul_(response_mask[block] != 0), weights)
    result *= (a * normaliser[group]).to(dtype)[:, None]

    tokens = N.sum().clamp(min=1)
    effective = group_sum(w_sum).square() / group_sum(w_squares).clamp(min=_TINY)
    covariance_after = a * normaliser[group] * (wx_sum - x_mean[group] * w_sum)
    no_rows = torch.zeros(1, dtype=torch.float64, device=device)
    statistics = (
        (sigma * signal).sum() / signal.sum().clamp(min=1),
        signal.sum() / (N > 0).sum().clamp(min=1),
        w_sum.sum() / tokens,
        torch.cat([no_rows, scale[group] * c_ends.abs().amax(0)]).max().square().neg().exp(),
        effective.sum() / tokens,
        (n - w_high).sum() / tokens,
        (n * c_row_mean).sum() / tokens,
        covariance_after.sum() / tokens,
        torch.cat([no_rows, c_ends.amax(0)]).max(),
        torch.cat([no_rows, c_ends.amin(0)]).min(),
    )
    return result, CovarianceStatistics(*torch.stack([value.double() for value in statistics]).tolist())


def _row_blocks(rows: int, time: int, device: torch.device) -> list[slice]:
    elements = _BLOCK_ELEMENTS if device.type == "cpu" else _BLOCK_ELEMENTS_ACCELERATOR
    size = max(1, elements // max(time, 1))
    return [slice(start, start + size) for start in range(0, rows if time else 0, size)]


def _to_host(*scalars: Tensor) -> list[float]:
    """One transfer from the device."""
    return torch.stack(scalars).tolist()


def _clear_off_mask(response_mask: Tensor, **tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors with 0 off the mask, where a NaN would survive multiplication by 0. Raises if one stands on it."""
    invalid = response_mask == 0
    cleared = {name: values.masked_fill(invalid, 0.0) for name, values in tensors.items()}
    for name, values in cleared.items():
        rows = (~torch.isfinite(values)).any(-1).nonzero().flatten().tolist()
        if rows:
            raise NonFiniteError(name, rows)
    return tuple(cleared.values())


def _check_arguments(
    log_probs: Tensor, response_mask: Tensor, kernel: str, advantages: tuple[Tensor, tuple[int, ...]]
) -> None:
    if kernel not in get_args(Kernel):
        raise OptionsError(f"kernel={kernel!r} is unknown; use one of {', '.join(get_args(Kernel))}")
    if log_probs.ndim != 2 or response_mask.shape != log_probs.shape:
        shapes = f"log_probs {tuple(log_probs.shape)} and response_mask {tuple(response_mask.shape)}"
        raise ValueError(f"{shapes} must both be (rows, time)")
    if advantages[0].shape != advantages[1]:
        raise ValueError(f"advantages {tuple(advantages[0].shape)} must be {tuple(advantages[1])}")
