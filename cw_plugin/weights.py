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
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cw_plugin.blocks import Block, blocks_of_like_length, multiply_rows, zeros
from cw_plugin.errors import NonFiniteError, OptionsError

Kernel = Literal["gaussian", "none"]

_VANISHING = 1e-15  # a smaller sigma counts as 0: c^2 would leave the range of float32
_UNIFORM = 10.0  # a group's covariances count as equal from this |mean(c)| / sigma on (module docstring)


@dataclass(frozen=True)
class CovarianceStatistics:
    """What the weights did, over all valid tokens.

    ``w`` is the kernel before normalisation. With ``kernel="none"`` it is 1, and the covariances are plain GRPO's.

    A token is *extreme* if the Gaussian kernel gives it w < 0.5, that is |c| > 1.18 sigma. With ``kernel="none"`` it
    keeps its weight and still counts as extreme, so a run of plain GRPO shows what the Gaussian kernel would take.
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
    extreme_gradient_share: float  # sum of A^2 (1 - pi)^2 over extreme tokens, divided by the sum over all tokens
    extreme_balance: float  # sum of c divided by the sum of |c|, both over extreme tokens; -1 to 1, 0 if there is none


@torch.no_grad()
def token_weights(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "rows time"], Float[Tensor, "rows time"]]:
    """c, w and w~ of every token; all rows together are one group. Arguments and errors as in reweight_tokens."""
    group = _OneGroup(log_probs, advantages, response_mask)
    w = group.w()
    return group.c, w, w * (group.N / w.sum(dtype=torch.float64).clamp(min=1e-300))


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
    _check_kernel(kernel)
    group = _OneGroup(log_probs, advantages, response_mask)
    if not group.N:
        return group.a, _NO_TOKEN
    w = group.w()
    extreme = (w < 0.5) & ~group.invalid
    if kernel == "none":
        w = (~group.invalid).to(w.dtype)
    w_sum = w.sum(dtype=torch.float64)
    result = (w * group.a).mul_(group.N / w_sum)
    slope = group.x.exp().sub_(1).mul_(group.a)  # A (pi - 1)
    sums = (
        w_sum,
        w.square().sum(dtype=torch.float64),
        group.x_centred.mul_(result).sum(dtype=torch.float64),
        extreme.sum(),
        slope.square_().sum(dtype=torch.float64),
        slope[extreme].sum(dtype=torch.float64),
        group.c[extreme].sum(dtype=torch.float64),
        group.c[extreme].abs().sum(dtype=torch.float64),
    )
    return result, group.moments.statistics(kernel, *(value.double()[None] for value in sums))


@torch.no_grad()
def reweight_responses(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    kernel: Kernel = "gaussian",
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token, with one advantage per response and statistics per group.

    A_i is constant in a row, so c is linear in log pi there. Hence mean(c) and sigma follow from the mean and spread of
    each row's log-probs, and two passes over the batch are enough. Computing mean(c), sigma, w and w~ one by one takes
    four. Sums over rows, and the sum of a row's log-probs, are in float64. The other sums within a row are in float32;
    their values are around 0 or between 0 and 1. Padding is skipped (blocks.py), and one thread does the work.

    Args:
        log_probs, response_mask, kernel: as in :func:`reweight_tokens`.
        advantages: one per response, as in GRPO.
        group: the number of each row's prompt group, 0 <= group < rows; ``None`` makes the batch one group.

    Returns:
        The reweighted advantages (float32; float64 for float64 log-probs), 0 where the mask is 0, and the statistics.

    Raises:
        NonFiniteError, OptionsError, ValueError: as in :func:`reweight_tokens`.
    """
    rows, time = log_probs.shape if log_probs.ndim == 2 else (0, 0)
    _check_kernel(kernel)
    _check_shapes(log_probs, response_mask, advantages, (rows,))
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
    slope = a_centred * groups.spread(c.scale)
    w_sum, w_squares, wx_sum, *extreme = _weigh(log_probs, x_mean, slope, blocks, kernel, result)
    count, gradient, extreme_gradient, extreme_x, extreme_x_size = extreme
    normaliser = groups.spread(c.N / groups.sum(w_sum))
    multiply_rows(result, result.new_zeros(rows).index_copy_(0, order, (normaliser * a).to(dtype)))

    sums = (
        w_sum,
        w_squares,
        normaliser * a * wx_sum,
        count,
        a.square() * gradient,
        a.square() * extreme_gradient,
        a_centred * extreme_x,
        a_centred.abs() * extreme_x_size,
    )
    return result, c.statistics(kernel, *map(groups.sum, sums))


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
    kernel: Kernel,
    w_of_all: Float[Tensor, "all time"],
) -> Iterable[Float[Tensor, " rows"]]:
    """Puts w into ``w_of_all``, and returns sums over each row's tokens.

    They are, with x = log pi - mean(log pi): the sums of w, w^2 and w x; then the number of extreme tokens, the sums of
    (1 - pi)^2 over all tokens and over extreme ones, and the sums of x and |x| over extreme ones.
    """
    dtype = w_of_all.dtype
    zero, sums = x_mean.new_zeros((), dtype=dtype), []
    for block in blocks:
        x = block.take(log_probs, dtype)
        rest = block.clear((x * math.log2(math.e)).exp2_().sub_(1))  # pi - 1
        x = block.clear(x.sub_(_column(x_mean, block, dtype)))
        root = x * _column(slope, block, dtype)
        w = block.clear(torch.addcmul(zero, root, root, value=-1, out=root).exp2_())
        extreme = torch.lt(w, 0.5, out=torch.empty_like(w))  # 1 at invalid tokens too, where what it multiplies is 0
        count = extreme.sum(-1).sub_(block.longest).add_(block.n)
        if kernel == "none":
            w = block.clear(w.fill_(1.0))
        block.put(w, w_of_all)
        of_w = [w.sum(-1), torch.linalg.vector_norm(w, dim=-1).square_(), torch.linalg.vecdot(w, x)]
        gradient = torch.linalg.vector_norm(rest, dim=-1).square_()
        extreme_gradient = torch.linalg.vector_norm(rest.mul_(extreme), dim=-1).square_()
        of_x = [torch.linalg.vecdot(extreme, x), torch.linalg.vecdot(extreme, x.abs_())]
        sums.append(torch.stack([*of_w, count, gradient, extreme_gradient, *of_x]))
    return torch.cat(sums, 1).double()


class _OneGroup:
    """The covariances of one group's tokens, and their moments."""

    def __init__(self, log_probs: Tensor, advantages: Tensor, response_mask: Tensor) -> None:
        _check_shapes(log_probs, response_mask, advantages, log_probs.shape)
        dtype = torch.promote_types(log_probs.dtype, torch.float32)
        self.invalid = response_mask == 0
        self.x, self.a = (values.to(dtype).masked_fill(self.invalid, 0.0) for values in (log_probs, advantages))
        x_sum, a_sum, n = (values.sum(-1, dtype=torch.float64) for values in (self.x, self.a, ~self.invalid))
        _check_finite(torch.arange(len(self.x)), log_probs=x_sum, advantages=a_sum)
        self.N = n.sum()
        N = self.N.clamp(min=1)  # nothing is divided by 0 where no token is valid

        # c = (log pi - mean(log pi)) * (A - mean(A)), and its standard deviation
        self.x_centred = (self.x - x_sum.sum() / N).masked_fill_(self.invalid, 0.0)
        self.c = (self.a - a_sum.sum() / N).mul_(self.x_centred)
        c_mean = self.c.sum(dtype=torch.float64) / N
        sigma = (self.c.square().sum(dtype=torch.float64) / N - c_mean.square()).clamp(min=0).sqrt()
        c_min, c_max = torch.aminmax(self.c) if self.c.numel() else (c_mean, c_mean)
        self.moments = _Moments(*(value.double()[None] for value in (self.N, c_mean, sigma, c_max, c_min)))

    def w(self) -> Float[Tensor, "rows time"]:
        """exp(-c^2 / (2 sigma^2)), 0 where the mask is 0."""
        return (self.c * self.moments.scale[0]).square_().neg_().exp2_().masked_fill_(self.invalid, 0.0)


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

    @property
    def scale(self) -> Float[Tensor, " groups"]:
        """s with w = 2^-(s c)^2 = exp(-c^2 / (2 sigma^2)). For exp2 instead of exp see blocks.py."""
        return torch.where(self.signal, math.sqrt(math.log2(math.e) / 2) / self.sigma, 0.0)

    def statistics(
        self,
        kernel: Kernel,
        w_sum: Float[Tensor, " groups"],
        w_squares: Float[Tensor, " groups"],
        c_after: Float[Tensor, " groups"],
        extreme: Float[Tensor, " groups"],
        gradient: Float[Tensor, " groups"],
        extreme_gradient: Float[Tensor, " groups"],
        extreme_c: Float[Tensor, " groups"],
        extreme_c_size: Float[Tensor, " groups"],
    ) -> CovarianceStatistics:
        """From each group's sums of w, w^2, w~ A (log pi - mean(log pi)), extreme tokens, A^2 (1 - pi)^2 over all and
        over extreme tokens, and c and |c| over extreme tokens."""
        tokens, signal, weighs = self.N.sum(), self.signal, kernel == "gaussian"
        statistics = (
            (self.sigma * signal).sum() / signal.sum().clamp(min=1),
            signal.double().mean(),
            w_sum.sum() / tokens,
            (weighs * self.scale * torch.maximum(self.max, -self.min)).max().square().neg().exp2(),
            torch.minimum(w_sum.square() / w_squares, self.N).sum() / tokens,
            weighs * extreme.sum() / tokens,
            (self.N * self.mean).sum() / tokens,
            c_after.sum() / tokens,
            self.max.max().clamp(min=0),
            self.min.min().clamp(max=0),
            _share(extreme_gradient, gradient),
            _share(extreme_c, extreme_c_size),
        )
        return CovarianceStatistics(*torch.stack([value.double() for value in statistics]).tolist())


def _share(part: Float[Tensor, " groups"], whole: Float[Tensor, " groups"]) -> Float[Tensor, ""]:
    """0 if the whole is 0."""
    total = whole.sum()
    return part.sum() / torch.where(total > 0, total, 1.0)


_NO_TOKEN = CovarianceStatistics(*[0.0] * len(fields(CovarianceStatistics)))


def _column(per_row: Float[Tensor, " rows"], block: Block, dtype: torch.dtype) -> Float[Tensor, "block 1"]:
    return per_row[block.at, None].to(dtype)


def _check_finite(rows: Int[Tensor, " rows"], **per_row: Float[Tensor, " rows"]) -> None:
    finite = torch.isfinite(torch.stack(list(per_row.values())))
    if not finite.all():
        which = int((~finite).any(1).nonzero()[0])  # the first of them
        raise NonFiniteError(list(per_row)[which], rows.to(finite.device)[~finite[which]].sort().values.tolist())


def _check_kernel(kernel: str) -> None:
    if kernel not in get_args(Kernel):
        raise OptionsError(f"kernel={kernel!r} is unknown; use one of {', '.join(get_args(Kernel))}")


def _check_shapes(log_probs: Tensor, response_mask: Tensor, advantages: Tensor, expected: tuple[int, ...]) -> None:
    if log_probs.ndim != 2 or response_mask.shape != log_probs.shape:
        shapes = f"log_probs {tuple(log_probs.shape)} and response_mask {tuple(response_mask.shape)}"
        raise ValueError(f"{shapes} must both be (rows, time)")
    if advantages.shape != expected:
        raise ValueError(f"advantages {tuple(advantages.shape)} must be {tuple(expected)}")
