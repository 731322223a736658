"""The weights of CW-GRPO: the paper's three equations, in plain PyTorch.

Source: "Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting", section 2.3.
For every prompt group, over its N valid response tokens (response i, position t)::

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
  This happens only in groups of very few tokens (with two, sigma is always 0).
* A group without a valid token has weight 0 everywhere and takes no part in the statistics.

Each group's tokens are taken out of the padded batch and weighed in float64: no sum loses a token, nothing overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from cw_plugin.errors import NonFiniteError
from cw_plugin.kernels import Kernel, checked

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class CovarianceStatistics:
    """What the weights did, over all valid tokens; all 0 if there is none.

    ``w`` is the kernel before normalisation. With ``kernel="none"`` it is 1, and the covariances are plain GRPO's.

    A token is *extreme* if the Gaussian kernel gives it w < 0.5, that is |c| > 1.18 sigma, whatever the kernel is. So a
    run of plain GRPO shows what the Gaussian kernel would take.
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


def gaussian(z: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The paper's kernel, exp(-z^2 / 2)."""
    return z.square().mul_(-0.5 * _LOG2_E).exp2_()  # exp2 takes half the time of exp


def find_kernel(kernel: str | Kernel) -> Kernel:
    """The function that "gaussian", "none" or "module:function" names; OptionsError if there is none."""
    named: dict[str | Kernel, Kernel] = {"gaussian": gaussian, "none": torch.ones_like}
    return named.get(kernel) or checked(kernel)


def token_weights(
    log_probs: Float[Tensor, " N"], advantages: Float[Tensor, " N"], kernel: Kernel = gaussian
) -> tuple[Float[Tensor, " N"], Float[Tensor, ""], Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The paper's equations for the N > 0 valid tokens of one group, in float64.

    Returns:
        c; sigma, which is 0 if no token is more extreme than another; the Gaussian's w; the kernel's w; and w~.
    """
    c = _centred(log_probs) * _centred(advantages)
    mean = c.mean()
    sigma = (c - mean).square_().mean().sqrt()
    differ = mean.abs() < 10 * sigma
    z = c * torch.where(differ, 1 / sigma, 0.0)
    of_gaussian = gaussian(z)
    w = of_gaussian if kernel is gaussian else kernel(z)
    return c, sigma * differ, of_gaussian, w, w * (len(w) / w.sum())


def _centred(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    values = values.double()
    values = values - values[0]  # the mean of equal values would not always be equal to them
    return values.sub_(values.mean())


@torch.no_grad()
def reweight(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    kernel: str | Kernel = "gaussian",
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token.

    Args:
        log_probs: log pi of each sampled token, in nats. Values where ``response_mask`` is 0 do not matter.
        advantages: one for each response, as in GRPO, or one for each token.
        response_mask: nonzero where a token belongs to the response, of any dtype. Holes are allowed.
        group: a number for each row, the same for all responses to a prompt; ``None`` makes the batch one group.
        kernel: "gaussian"; "none", which gives every token weight 1, with the same statistics; "module:function"; or a
            function from z = c / sigma to w. It gets one group's tokens at a time, as a float64 tensor (N,).

    Returns:
        The reweighted advantages (float32; float64 for float64 log-probs), 0 where the mask is 0, and the statistics.

    Raises:
        NonFiniteError: a valid token has a NaN or infinite log-prob or advantage, or they are so large that their
            weights are not finite; the message names the rows.
        OptionsError: there is no such kernel, or it returns what cannot be a weight.
        ValueError: shapes that do not belong together.
    """
    number = torch.zeros(len(log_probs), dtype=torch.long) if group is None else group.cpu()
    shape, by_row = log_probs.shape, log_probs.shape[:1]
    if (
        len(shape) != 2
        or response_mask.shape != shape
        or number.shape != by_row
        or advantages.shape not in (shape, by_row)
    ):
        given = {"log_probs": log_probs, "advantages": advantages, "response_mask": response_mask, "group": number}
        shapes = ", ".join(f"{name} {tuple(values.shape)}" for name, values in given.items())
        raise ValueError(
            f"{shapes} do not fit; they must be (rows, time), (rows,) or (rows, time), (rows, time), (rows,)"
        )
    function = find_kernel(kernel)

    result = torch.zeros_like(log_probs, dtype=torch.promote_types(log_probs.dtype, torch.float32))
    every_valid = response_mask != 0
    sums, rows_of = [], []  # of each group with a token
    for rows in number.argsort(stable=True).split(number.unique(return_counts=True)[1].tolist()):
        rows = rows.to(log_probs.device)
        valid = every_valid.index_select(0, rows)
        x = log_probs.index_select(0, rows).masked_select(valid).double()
        if not len(x):
            continue
        a = advantages.index_select(0, rows)
        a = (a.repeat_interleave(valid.sum(-1)) if a.ndim == 1 else a.masked_select(valid)).double()
        c, sigma, of_gaussian, w, weight = token_weights(x, a, function)
        weighted = weight.mul_(a).to(result.dtype)
        result.index_copy_(0, rows, torch.zeros_like(valid, dtype=result.dtype).masked_scatter_(valid, weighted))

        extreme = torch.lt(of_gaussian, 0.5, out=torch.empty_like(w))
        low = extreme if w is of_gaussian else (w < 0.5).double()
        gradient = (x * _LOG2_E).exp2_().sub_(1).mul_(a).square_()  # A^2 (1 - pi)^2
        of_c = [c.sum(), weight @ x - weight.sum() * x.mean(), *torch.aminmax(c)]
        of_w = [w.sum(), w @ w, w.min(), low.sum(), weighted.sum().double()]
        of_extreme = [gradient.sum(), gradient @ extreme, c @ extreme, c.abs() @ extreme]
        sums.append(torch.stack([torch.full_like(sigma, len(x)), sigma, *of_c, *of_w, *of_extreme]))
        rows_of.append(rows)
    if not sums:
        return result, CovarianceStatistics(*[0.0] * len(fields(CovarianceStatistics)))
    found = torch.stack(sums).cpu()
    if not (finite := found.isfinite().all(1)).all():
        rows = torch.cat([rows for rows, well in zip(rows_of, finite, strict=True) if not well])
        raise _non_finite(log_probs, advantages, every_valid, rows.sort().values)

    n, sigma, before, after, c_min, c_max, w_sum, w_squares, w_min, low, _, *of_extreme = found.unbind(1)
    gradient, extreme_gradient, extreme_c, extreme_size = (values.sum() for values in of_extreme)
    statistics = (
        sigma.sum() / (sigma > 0).sum().clamp(min=1),
        (sigma > 0).double().mean(),
        w_sum.sum() / n.sum(),
        w_min.min(),
        (w_sum.square() / w_squares).sum() / n.sum(),
        low.sum() / n.sum(),
        before.sum() / n.sum(),
        after.sum() / n.sum(),
        c_max.max().clamp(min=0),
        c_min.min().clamp(max=0),
        extreme_gradient / gradient if gradient else gradient,
        extreme_c / extreme_size if extreme_size else extreme_size,
    )
    return result, CovarianceStatistics(*map(float, statistics))


def _non_finite(log_probs: Tensor, advantages: Tensor, every_valid: Tensor, rows: Tensor) -> NonFiniteError:
    """The error that names the rows, of those in groups whose weights are not finite."""
    valid = every_valid[rows]
    for name, values in (("log_probs", log_probs), ("advantages", advantages)):
        values = values[rows] if values.ndim == 2 else values[rows, None]
        wrong = (valid & ~values.isfinite()).any(1)
        if wrong.any():
            return NonFiniteError(name, rows[wrong].tolist())
    return NonFiniteError("weighted advantages", rows[valid.any(1)].tolist())
