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
* sigma divides by N (ddof 0): the paper calls it the empirical deviation of the set {c_it}, and so it is defined for
  one token too. Compared with ddof 1, sigma changes by a factor 1 - 1/(2N), one part in 10^4 for 5,000 tokens.
* sigma = 0 (equal rewards, one token, equal log-probs): no token is more extreme than another, so w = w~ = 1. The same
  holds if |mean(c)| >= 10 sigma. Then all covariances are nearly equal, and every w would underflow, which gives 0 / 0.
  This happens only in groups of very few tokens (with two, sigma is always 0). The means of log pi and A are taken in
  float64, so that equal inputs give c = 0 exactly.
* A group without a valid token has weight 0 everywhere and takes no part in the statistics.

:func:`reweight_tokens` computes these equations directly, for one group; each token may have its own advantage.
:func:`reweight_responses` computes the same for many groups at once, with one advantage per response, as in GRPO.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cw_plugin.blocks import Block, blocks_of_like_length, multiply_rows, zeros
from cw_plugin.errors import NonFiniteError, OptionsError

Kernel = Literal["gaussian", "none"]

# Called with the row indices of a block, and c_it and w~_it of these rows; see reweight_responses.
Observer = Callable[[Tensor, Tensor, Tensor], None]

_VANISHING = 1e-15  # a smaller sigma counts as 0: c^2 would leave the range of float32
_UNIFORM = 10.0  # a group's covariances count as equal from this |mean(c)| / sigma on (module docstring)


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
    """w~ A of every token; all rows together are one group.

    Args:
        log_probs: log pi of each sampled token, in nats, any float dtype. The computation uses float32 at least, and
            float64 for sums over the group. Values where ``response_mask`` is 0 do not matter.
        advantages: one per token.
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
    invalid = response_mask == 0
    x, a = (values.to(dtype).masked_fill(invalid, 0.0) for values in (log_probs, advantages))
    x_sum, a_sum, N = (values.sum(-1, dtype=torch.float64) for values in (x, a, ~invalid))
    _check_finite(torch.arange(len(x)), log_probs=x_sum, advantages=a_sum)
    N = N.sum()
    if not N:
        return x, _NO_TOKEN

    # c = (log pi - mean(log pi)) * (A - mean(A)), and its standard deviation
    x_centred = (x - x_sum.sum() / N).masked_fill_(invalid, 0.0)
    c = (a - a_sum.sum() / N).mul_(x_centred)
    c_mean = c.sum(dtype=torch.float64) / N
    sigma = (c.square().sum(dtype=torch.float64) / N - c_mean.square()).clamp(min=0).sqrt()
    c_min, c_max = torch.aminmax(c)
    moments = _Moments(*(value.double()[None] for value in (N, c_mean, sigma, c_max, c_min)))

    # w = exp(-c^2 / (2 sigma^2)), then w~ A = w A N / sum(w)
    w = (c * moments.scale(kernel)[0]).square_().neg_().exp2_().masked_fill_(invalid, 0.0)
    w_sum, w_squares = w.sum(dtype=torch.float64), w.square().sum(dtype=torch.float64)
    result = (w * a).mul_(N / w_sum)

    c_after = x_centred.mul_(result).sum(dtype=torch.float64)
    return result, moments.statistics(kernel, *(value[None] for value in (w_sum, w_squares, (w >= 0.5).sum(), c_after)))


@torch.no_grad()
def reweight_responses(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    kernel: Kernel = "gaussian",
    observe: Observer | None = None,
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token, with one advantage per response and statistics per group.

    A_i is constant in a row, so c is linear in log pi there. Hence mean(c) and sigma follow from the mean and spread of
    each row's log-probs, and the batch is read twice instead of four times. Sums over rows, and the sum of a row's
    log-probs, are in float64. The other sums within a row are in float32; their values are around 0 or between 0 and 1.
    Padding is skipped (blocks.py), and one thread does the work.

    Args:
        log_probs, response_mask, kernel: as in :func:`reweight_tokens`.
        advantages: one per response, as in GRPO.
        group: the number of each row's prompt group, 0 <= group < rows; ``None`` makes the batch one group.
        observe: called with c and w~ of every block of rows, 0 where the mask is 0, to record them.

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
    result = zeros(rows, time, dtype, device)
    blocks = blocks_of_like_length(response_mask)
    if not blocks:
        return result, _NO_TOKEN

    # From here on, rows are only those with a token, in block order.
    order = torch.cat([block.rows for block in blocks])
    a = advantages.index_select(0, order).double()
    groups = _Groups(group.to(device).index_select(0, order))
    x_mean, a_centred, c = _moments(log_probs, a, order, blocks, groups, dtype)

    # result holds w = exp(-c^2 / (2 sigma^2)) until sum(w) is known, then w~ A = w A N / sum(w).
    slope = a_centred * groups.spread(c.scale(kernel))
    w_sum, w_squares, w_high, wx_sum = _weigh(log_probs, x_mean, slope, blocks, result)
    normaliser = groups.spread(c.N / groups.sum(w_sum))
    if observe is not None:
        for block in blocks:
            x = block.take(log_probs, dtype).sub_(_column(x_mean, block, dtype))
            observe(
                block.rows,
                block.clear(x.mul_(_column(a_centred, block, dtype))),
                block.take(result, dtype).mul_(_column(normaliser, block, dtype)),
            )
    multiply_rows(result, result.new_zeros(rows).index_copy_(0, order, (normaliser * a).to(dtype)))

    c_after = normaliser * a * wx_sum
    return result, c.statistics(kernel, *(groups.sum(values) for values in (w_sum, w_squares, w_high, c_after)))


def _moments(
    log_probs: Float[Tensor, "all time"],
    a: Float[Tensor, " rows"],
    order: Int[Tensor, " rows"],
    blocks: list[Block],
    groups: _Groups,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, " rows"], Float[Tensor, " rows"], _Moments]:
    """mean(log pi) of each row's group, A - mean(A) of each row, and the moments of c."""
    sums, others = [], []
    for block in blocks:
        x = block.clear(block.take(log_probs, dtype))
        sums.append(x.sum(-1, dtype=torch.float64))
        block.clear(x.sub_((sums[-1] / block.n).to(dtype)[:, None]))
        others.append(torch.stack([torch.linalg.vector_norm(x, dim=-1), x.amax(-1), x.amin(-1)]))
    n, x_sum = torch.cat([block.n for block in blocks]), torch.cat(sums)
    x_norm, x_max, x_min = torch.cat(others, 1).double()  # around the row's mean
    _check_finite(order, log_probs=x_sum, advantages=a)

    N = groups.sum(n)
    x_mean, a_mean = groups.spread(groups.sum(x_sum) / N), groups.spread(groups.sum(n * a) / N)
    # The mean of float64 sums of equal float32 values is exact; the cast keeps it so for the difference.
    a_centred = (a.to(dtype) - a_mean.to(dtype)).double()

    # c = (log pi - mean(log pi)) * (A - mean(A)) is linear in log pi within a row.
    offset = x_sum / n - x_mean
    c_row_mean = a_centred * offset
    c_mean = groups.sum(n * c_row_mean) / N
    c_squares = (a_centred * x_norm).square() + n * (c_row_mean - groups.spread(c_mean)).square()
    c_ends = torch.stack([a_centred * (x_max + offset), a_centred * (x_min + offset)])
    c_max, c_min = groups.sum(c_ends.amax(0), "amax"), groups.sum(c_ends.amin(0), "amin")
    return x_mean, a_centred, _Moments(N, c_mean, (groups.sum(c_squares) / N) ** 0.5, c_max, c_min)


def _weigh(
    log_probs: Float[Tensor, "all time"],
    x_mean: Float[Tensor, " rows"],
    slope: Float[Tensor, " rows"],
    blocks: list[Block],
    w_of_all: Float[Tensor, "all time"],
) -> list[Float[Tensor, " rows"]]:
    """Puts w into ``w_of_all``. Returns each row's sums of w, w^2, w >= 0.5 and w (log pi - mean(log pi))."""
    dtype = w_of_all.dtype
    zero, sums = x_mean.new_zeros((), dtype=dtype), []
    for block in blocks:
        x = block.clear(block.take(log_probs, dtype).sub_(_column(x_mean, block, dtype)))
        root = x * _column(slope, block, dtype)
        w = block.clear(torch.addcmul(zero, root, root, value=-1, out=root).exp2_())
        block.put(w, w_of_all)
        w_norm, wx = torch.linalg.vector_norm(w, dim=-1), torch.linalg.vecdot(w, x)
        sums.append(torch.stack([w.sum(-1), w_norm, torch.ge(w, 0.5, out=x).sum(-1), wx]))
    w_sum, w_norm, w_high, wx_sum = torch.cat(sums, 1).double()
    return [w_sum, w_norm.square(), w_high, wx_sum]


class _Groups:
    """Sums over the rows of each group, in float64."""

    def __init__(self, numbers: Int[Tensor, " rows"]) -> None:
        present, self._group = numbers.unique(return_inverse=True)
        self._count = len(present)

    def sum(self, per_row: Float[Tensor, " rows"], reduce: str = "sum") -> Float[Tensor, " groups"]:
        return per_row.new_zeros(self._count).scatter_reduce_(0, self._group, per_row, reduce)

    def spread(self, per_group: Float[Tensor, " groups"]) -> Float[Tensor, " rows"]:
        return per_group.index_select(0, self._group)


@dataclass(frozen=True)
class _Moments:
    """Of the covariances of each group, in float64."""

    N: Float[Tensor, " groups"]
    mean: Float[Tensor, " groups"]
    sigma: Float[Tensor, " groups"]
    max: Float[Tensor, " groups"]
    min: Float[Tensor, " groups"]

    @property
    def signal(self) -> Bool[Tensor, " groups"]:
        """Whether covariances differ; else all weights are 1."""
        return (self.sigma >= _VANISHING) & (self.mean.abs() < _UNIFORM * self.sigma)

    def scale(self, kernel: Kernel) -> Float[Tensor, " groups"]:
        """s with w = 2^-(s c)^2 = exp(-c^2 / (2 sigma^2)). For exp2 instead of exp see blocks.py."""
        return torch.where(self.signal & (kernel == "gaussian"), math.sqrt(math.log2(math.e) / 2) / self.sigma, 0.0)

    def statistics(
        self,
        kernel: Kernel,
        w_sum: Float[Tensor, " groups"],
        w_squares: Float[Tensor, " groups"],
        w_high: Shaped[Tensor, " groups"],  # a count, of any dtype
        c_after: Float[Tensor, " groups"],
    ) -> CovarianceStatistics:
        """From each group's sums of w, w^2, w >= 0.5 and w~ A (log pi - mean(log pi))."""
        tokens, signal = self.N.sum(), self.signal
        statistics = (
            (self.sigma * signal).sum() / signal.sum().clamp(min=1),
            signal.double().mean(),
            w_sum.sum() / tokens,
            (self.scale(kernel) * torch.maximum(self.max, -self.min)).max().square().neg().exp2(),
            torch.minimum(w_sum.square() / w_squares, self.N).sum() / tokens,
            (self.N - w_high).sum() / tokens,
            (self.N * self.mean).sum() / tokens,
            c_after.sum() / tokens,
            self.max.max().clamp(min=0),
            self.min.min().clamp(max=0),
        )
        return CovarianceStatistics(*torch.stack([value.double() for value in statistics]).tolist())


_NO_TOKEN = CovarianceStatistics(*[0.0] * 10)


def _column(per_row: Float[Tensor, " rows"], block: Block, dtype: torch.dtype) -> Float[Tensor, "block 1"]:
    return per_row[block.at, None].to(dtype)


def _check_finite(rows: Int[Tensor, " rows"], **per_row: Float[Tensor, " rows"]) -> None:
    finite = torch.isfinite(torch.stack(list(per_row.values())))
    if not finite.all():
        which = int((~finite).any(1).nonzero()[0])  # the first of them
        raise NonFiniteError(list(per_row)[which], rows.to(finite.device)[~finite[which]].sort().values.tolist())


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
