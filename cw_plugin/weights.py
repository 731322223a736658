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

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cw_plugin.errors import NonFiniteError, OptionsError

Kernel = Literal["gaussian", "none"]

# Called with a block of rows, their numbers in the batch, and c_it and w~_it; see reweight_responses.
Observer = Callable[[Tensor, Tensor, Tensor], None]

# reweight_responses takes rows in blocks of at most this many elements. On a CPU temporaries then stay in the cache.
# With several threads blocks are so small that torch, which splits operations on 32768 elements and more, runs each on
# one: beside other work on the same cores, each of the many operations would wait for the slowest thread. For that, too,
# there is exp2 below in place of exp, ** 0.5 of sqrt and index_select of indexing, which torch splits at any size. A GPU
# wants few, large launches instead.
_BLOCK_ELEMENTS = {"one thread": 2**16, "several threads": 2**15 - 1, "accelerator": 2**24}
_CHUNK = 128  # columns that are counted together to find where responses end

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


_NO_TOKEN = CovarianceStatistics(*[0.0] * 10)


@torch.no_grad()
def reweight_tokens(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, "rows time"],
    response_mask: Bool[Tensor, "rows time"] | Int[Tensor, "rows time"],
    kernel: Kernel = "gaussian",
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token, all rows together being one group.

    Args:
        log_probs: log pi of each sampled token, in nats, any float dtype; computed in float32 at least, summed in
            float64. What stands where ``response_mask`` is 0 does not matter.
        advantages: one to a token.
        response_mask: 1 where a token belongs to the response, else 0. Holes are allowed.
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
    invalid = response_mask == 0
    x, a = (values.to(dtype).masked_fill(invalid, 0.0) for values in (log_probs, advantages))
    rows = torch.stack([(~invalid).sum(-1).double(), x.sum(-1, dtype=torch.float64), a.sum(-1, dtype=torch.float64)])
    N, x_sum, a_sum = rows.sum(-1)
    if not (torch.isfinite(x_sum + a_sum) & (N > 0)):
        _check_finite(torch.arange(len(x)), log_probs=rows[1], advantages=rows[2])
        return x, _NO_TOKEN

    # c = (log pi - mean(log pi)) * (A - mean(A)), and its standard deviation
    x_centred = (x - x_sum / N).masked_fill_(invalid, 0.0)
    c = (a - a_sum / N).mul_(x_centred)
    c_mean = c.sum(dtype=torch.float64) / N
    sigma = (c.square().sum(dtype=torch.float64) / N - c_mean.square()).clamp(min=0).sqrt()

    # w = exp(-c^2 / (2 sigma^2)), then w~ A = w A N / sum(w)
    signal, scale = _bandwidth(c_mean, sigma, kernel)
    w = (c * scale).square_().neg_().exp2_().masked_fill_(invalid, 0.0)
    w_sum, w_squares = w.sum(dtype=torch.float64), w.square().sum(dtype=torch.float64)
    result = (w * a).mul_(N / w_sum)

    c_min, c_max = torch.aminmax(c)
    c_after = x_centred.mul_(result).sum(dtype=torch.float64)
    sums = (N, c_mean, sigma, signal, scale, c_max, c_min, w_sum, w_squares, (w >= 0.5).sum(), c_after)
    return result, _statistics(*(value[None] for value in sums))


@torch.no_grad()
def reweight_responses(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"],
    response_mask: Bool[Tensor, "rows time"] | Int[Tensor, "rows time"],
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
    dtype, device = torch.promote_types(log_probs.dtype, torch.float32), log_probs.device
    result = _zeros(rows, time, dtype, device)
    blocks = _blocks_of_like_length(response_mask)
    if not blocks:
        return result, _NO_TOKEN

    # From here on "rows" are those with a token, in the order of the blocks, and "groups" those with such a row.
    order = torch.cat([block.rows for block in blocks])
    a = advantages.index_select(0, order).double()
    groups, group = group.to(device).index_select(0, order).unique(return_inverse=True)

    def by_group(per_row: Float[Tensor, " rows"], reduce: str = "sum") -> Float[Tensor, " groups"]:
        return per_row.new_zeros(len(groups)).scatter_reduce_(0, group, per_row, reduce)

    def by_row(per_group: Float[Tensor, " groups"]) -> Float[Tensor, " rows"]:
        return per_group.index_select(0, group)

    def column(per_row: Float[Tensor, " rows"]) -> Float[Tensor, "rows 1"]:
        return per_row.to(dtype)[:, None]

    # Moments. mean(log pi) and mean(A) of a group; the mean and the deviation of its c, from those of each row.
    n, x_sum, x_norm, x_max, x_min = _row_moments(log_probs, blocks, dtype)
    _check_finite(order, log_probs=x_sum, advantages=a)
    N = by_group(n)
    x_mean, a_mean = by_row(by_group(x_sum) / N), by_row(by_group(a * n) / N)
    x_offset = x_sum / n - x_mean
    # The mean of float64 sums of equal float32 values is exact; the cast keeps it so for the difference.
    a_centred = (a.to(dtype) - a_mean.to(dtype)).double()
    c_row_mean = a_centred * x_offset
    c_mean = by_group(n * c_row_mean) / N
    c_squares = (a_centred * x_norm).square() + n * (c_row_mean - by_row(c_mean)).square()
    sigma = (by_group(c_squares) / N) ** 0.5

    # Weights. w = exp(-c^2 / (2 sigma^2)) stands in result until sum(w) is known, then w~ A = w A N / sum(w).
    signal, scale = _bandwidth(c_mean, sigma, kernel)
    zero = a.new_zeros((), dtype=dtype)
    centre, slope, sums = column(x_mean), column(a_centred * by_row(scale)), []
    for block in blocks:
        x = block.centred(log_probs, centre)
        root = x * slope[block.at]
        w = block.clear(torch.addcmul(zero, root, root, value=-1, out=root).exp2_())
        block.put(w, result)
        wx = torch.linalg.vecdot(w, x)
        sums.append(torch.stack([w.sum(-1), torch.linalg.vector_norm(w, dim=-1), torch.ge(w, 0.5, out=x).sum(-1), wx]))
    w_sum, w_norm, w_high, wx_sum = torch.cat(sums, 1).double()
    normaliser = by_row(N / by_group(w_sum))
    for block in blocks if observe is not None else ():
        c = block.centred(log_probs, centre).mul_(column(a_centred)[block.at])
        observe(block.rows, c, block.take(result).mul_(column(normaliser)[block.at]))  # result is still w
    factor = result.new_zeros(rows, 1).index_copy_(0, order, column(normaliser * a))
    for values, by in zip(result.split(8), factor.split(8), strict=True):
        values *= by

    # Statistics, by group. c is linear in log pi within a row, so its ends are the row's.
    c_ends = torch.stack([a_centred * (x_max + x_offset), a_centred * (x_min + x_offset)])
    c_max, c_min = by_group(c_ends.amax(0), "amax"), by_group(c_ends.amin(0), "amin")
    sums = [by_group(per_row) for per_row in (w_sum, w_norm.square(), w_high, a * normaliser * wx_sum)]
    return result, _statistics(N, c_mean, sigma, signal, scale, c_max, c_min, *sums)


@dataclass(frozen=True)
class _Block:
    """Rows of like length, with a token each. Padding beyond the longest is not looked at."""

    at: slice  # of the tensors that have one value for every row, in the order of the blocks
    rows: Int[Tensor, " block"]  # the rows' numbers in the batch
    n: Float[Tensor, " block"]  # valid tokens
    full: int  # before this column every token is valid
    longest: int  # from this column on none is
    invalid: Bool[Tensor, "block ragged"]  # in between

    def take(self, values: Float[Tensor, "rows time"]) -> Float[Tensor, "block longest"]:
        """A copy of these rows."""
        return values[:, : self.longest].index_select(0, self.rows)

    def put(self, values: Float[Tensor, "block longest"], into: Float[Tensor, "rows time"]) -> None:
        into[:, : self.longest].index_copy_(0, self.rows, values)

    def clear(self, values: Float[Tensor, "block longest"]) -> Float[Tensor, "block longest"]:
        """Sets what stands off the mask to 0, NaN included."""
        values[:, self.full :].masked_fill_(self.invalid, 0.0)
        return values

    def centred(
        self, values: Float[Tensor, "rows time"], centre: Float[Tensor, "rows 1"]
    ) -> Float[Tensor, "block longest"]:
        return self.clear(self.take(values).to(centre.dtype).sub_(centre[self.at]))


def _blocks_of_like_length(mask: Tensor) -> list[_Block]:
    """The rows that hold a token, the longest first."""
    rows, time = mask.shape
    kind = "one thread" if torch.get_num_threads() == 1 else "several threads"
    elements = _BLOCK_ELEMENTS[kind if mask.device.type == "cpu" else "accelerator"]

    # Valid tokens in every chunk of columns; the last chunk may be narrower.
    whole = time // _CHUNK
    chunked = mask[:, : whole * _CHUNK].unflatten(1, (whole, _CHUNK))
    counts = [part.sum(-1) for part in chunked.split(max(1, elements // max(time, 1)))]
    counts = torch.cat([torch.cat(counts), mask[:, whole * _CHUNK :].sum(-1, keepdim=True)], 1).cpu().numpy()
    ends = np.minimum(np.arange(1, whole + 2) * _CHUNK, time)
    sizes = np.diff(ends, prepend=0)
    longest = ((counts > 0) * ends).max(1)
    full = (np.cumprod(counts == sizes, axis=1) * sizes).sum(1)

    order = np.lexsort((full, longest))[::-1][: np.count_nonzero(longest)]
    n = torch.from_numpy(counts.sum(1, dtype=np.float64)[order]).to(mask.device)
    numbers = torch.from_numpy(order.copy()).to(mask.device)
    blocks, start = [], 0
    while start < len(order):
        width = int(longest[order[start]])
        at = slice(start, start := min(len(order), start + max(1, elements // width)))
        ragged = slice(int(full[order[at]].min()), width)
        invalid = mask[:, ragged].index_select(0, numbers[at]) == 0
        blocks.append(_Block(at, numbers[at], n[at], ragged.start, width, invalid))
    return blocks


def _zeros(rows: int, time: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "rows time"]:
    if device.type != "cpu":
        return torch.zeros(rows, time, dtype=dtype, device=device)
    # NumPy asks the system for huge pages. Without them, to get the memory takes a quarter of the time of all this.
    return torch.from_numpy(np.zeros((rows, time), np.float64 if dtype == torch.float64 else np.float32))


def _row_moments(log_probs: Tensor, blocks: list[_Block], dtype: torch.dtype) -> list[Float[Tensor, " rows"]]:
    """Of each row in float64: its tokens, their sum, and around their mean the norm, maximum and minimum."""
    sums, others = [], []
    for block in blocks:
        x = block.clear(block.take(log_probs).to(dtype))
        sums.append(x.sum(-1, dtype=torch.float64))
        block.clear(x.sub_((sums[-1] / block.n).to(dtype)[:, None]))
        others.append(torch.stack([torch.linalg.vector_norm(x, dim=-1), x.amax(-1), x.amin(-1)]))
    return [torch.cat([block.n for block in blocks]), torch.cat(sums), *torch.cat(others, 1).double()]


def _bandwidth(
    c_mean: Float[Tensor, "*groups"], sigma: Float[Tensor, "*groups"], kernel: Kernel
) -> tuple[Bool[Tensor, "*groups"], Float[Tensor, "*groups"]]:
    """Whether covariances differ, and 1 / (sqrt(2) sigma), or 0 where all weights are 1."""
    signal = (sigma >= _VANISHING) & (c_mean.abs() < _UNIFORM * sigma)
    scale = torch.where(signal, math.sqrt(math.log2(math.e) / 2) / sigma, 0.0)
    return signal, scale if kernel == "gaussian" else torch.zeros_like(scale)


def _statistics(
    N: Float[Tensor, " groups"],
    c_mean: Float[Tensor, " groups"],
    sigma: Float[Tensor, " groups"],
    signal: Bool[Tensor, " groups"],
    scale: Float[Tensor, " groups"],
    c_max: Float[Tensor, " groups"],
    c_min: Float[Tensor, " groups"],
    w_sum: Float[Tensor, " groups"],
    w_squares: Float[Tensor, " groups"],
    w_high: Float[Tensor, " groups"],
    c_after: Float[Tensor, " groups"],
) -> CovarianceStatistics:
    statistics = (
        (sigma * signal).sum() / signal.sum().clamp(min=1),
        signal.double().mean(),
        w_sum.sum() / N.sum(),
        (scale * torch.maximum(c_max, -c_min)).max().square().neg().exp2(),
        (w_sum.square() / w_squares).sum() / N.sum(),
        (N - w_high).sum() / N.sum(),
        (N * c_mean).sum() / N.sum(),
        c_after.sum() / N.sum(),
        c_max.max().clamp(min=0),
        c_min.min().clamp(max=0),
    )
    return CovarianceStatistics(*torch.stack([value.double() for value in statistics]).tolist())


def _check_finite(rows: Int[Tensor, " rows"], **per_row: Float[Tensor, " rows"]) -> None:
    for name, values in per_row.items():
        if not torch.isfinite(values).all():
            raise NonFiniteError(name, rows.to(values.device)[~torch.isfinite(values)].sort().values.tolist())


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
