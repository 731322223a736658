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
"""

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
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


class TokenWeights(NamedTuple):
    """The paper's quantities for the N valid tokens of one group."""

    deviation: Float[Tensor, " N"]  # log pi - mean(log pi), float64
    c: Float[Tensor, " N"]
    mean: float  # of c: Cov(log pi, A)
    sigma: float  # of c, 0 if no token is more extreme than another
    gaussian: Float[Tensor, " N"]  # the Gaussian's w, whatever the kernel is
    w: Float[Tensor, " N"]
    total: float  # of w
    weight: Float[Tensor, " N"]  # w~


def token_weights(
    log_probs: Float[Tensor, " N"], advantages: Float[Tensor, " N"], kernel: str | Kernel = "gaussian"
) -> TokenWeights:
    """The paper's equations for the N > 0 valid tokens of one group; ``kernel`` as in :func:`reweight`."""
    deviation = _centred(log_probs)
    c = deviation * _centred(advantages)
    mean = float(c.mean())
    sigma = math.sqrt(max(float(c @ c) / len(c) - mean * mean, 0.0))  # in float64 this short form is exact enough
    sigma = 0.0 if abs(mean) >= 10 * sigma else sigma
    c = c.to(log_probs.dtype)
    z = c * (1 / sigma if sigma else 0.0)
    w = gaussian_w = gaussian(z)
    if kernel != "gaussian":
        w = torch.ones_like(z) if kernel == "none" else checked(kernel)(z)
    total = float(w.sum(dtype=torch.float64))
    return TokenWeights(deviation, c, mean, sigma, gaussian_w, w, total, w * (len(w) / total))


def _centred(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    # The mean of equal values must be equal to them. In float64 it is for float32; for float64 one value is the origin.
    values = values - values[0] if values.dtype == torch.float64 else values.double()
    return values.sub_(values.sum() / len(values))


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
            function from z = c / sigma to w. It gets one group's tokens at a time, as a tensor (N,).

    Returns:
        The reweighted advantages (float32; float64 for float64 log-probs), 0 where the mask is 0, and the statistics.

    Raises:
        NonFiniteError: a valid token has a NaN or infinite log-prob or advantage, or they are so large that their
            weights are not finite; the message names the rows.
        OptionsError: there is no such kernel, or it returns what cannot be a weight.
        ValueError: shapes that do not belong together.
    """
    group = torch.zeros(len(log_probs), dtype=torch.long) if group is None else group.cpu()
    shape, by_row = log_probs.shape, log_probs.shape[:1]
    given = [tuple(values.shape) for values in (log_probs, advantages, response_mask, group)]
    if len(shape) != 2 or given[1] not in (shape, by_row) or given[2:] != [shape, by_row]:
        shapes = "log_probs {}, advantages {}, response_mask {} and group {}".format(*given)
        raise ValueError(f"{shapes} do not fit; give (rows, time), (rows,) or (rows, time), (rows, time) and (rows,)")
    every_valid = response_mask.bool()
    booleans = every_valid.cpu().numpy()  # NumPy counts them ten times faster
    lengths, holes = torch.from_numpy(booleans.sum(1)), (booleans[:, 1:] > booleans[:, :-1]).any()
    advantages = advantages[:, None].expand(shape) if advantages.ndim == 1 else advantages
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    # NumPy, whose dtypes have PyTorch's names, asks for huge pages, which the first write fills three times faster.
    cpu = log_probs.is_cpu
    result = torch.from_numpy(np.zeros(shape, str(dtype)[6:])) if cpu else log_probs.new_zeros(shape, dtype=dtype)
    sums, rows_of = [], []  # of each group with a token
    for rows in group.argsort(stable=True).split(group.unique(return_counts=True)[1].tolist()):
        if not any(counts := lengths[rows].tolist()):
            continue
        # Where each row's tokens stand: positions if there are holes, else a slice, which is copied faster.
        places = [every_valid[row].nonzero()[:, 0] for row in rows] if holes else map(slice, counts)
        at: list = list(zip(rows.tolist(), places, strict=True))
        x, a = (torch.cat([values[place] for place in at]).to(dtype) for values in (log_probs, advantages))
        deviation, c, mean, sigma, gaussian_w, w, total, weight = token_weights(x, a, kernel)
        weighted = weight.mul_(a)
        for place, part in zip(at, weighted.split(counts), strict=True):
            result[place] = part
        extreme = torch.lt(gaussian_w, 0.5, out=torch.empty_like(w))
        c_range, after = torch.aminmax(c), float(weighted.double() @ deviation)
        w_sums = [w.square().sum(), w.min(), (extreme if w is gaussian_w else w < 0.5).sum().to(dtype)]
        gradient = (x * _LOG2_E).exp2_().sub_(1).mul_(a).square_()  # A^2 (1 - pi)^2
        extreme_sums = [gradient.sum(), gradient.mul_(extreme).sum(), c.mul_(extreme).sum(), c.abs_().sum()]
        sums.append([len(x), mean, sigma, total, after, *torch.stack([*c_range, *w_sums, *extreme_sums]).tolist()])
        rows_of.append(rows)
    if not sums:
        return result, CovarianceStatistics(*[0.0] * len(fields(CovarianceStatistics)))
    found = torch.tensor(sums, dtype=torch.float64)
    if not (finite := found.isfinite().all(1)).all():
        rows = torch.cat([rows for rows, well in zip(rows_of, finite, strict=True) if not well])
        raise _non_finite(log_probs, advantages, every_valid, rows.sort().values)

    n, means, sigmas, w_sum, afters, c_min, c_max, w_squares, w_min, low, *extreme_sums = found.unbind(1)
    gradient, extreme_gradient, extreme_c, extreme_size = (values.sum() for values in extreme_sums)
    statistics = (
        sigmas.sum() / (sigmas > 0).sum().clamp(min=1),
        (sigmas > 0).double().mean(),
        w_sum.sum() / n.sum(),
        w_min.min(),
        (w_sum.square() / w_squares).sum() / n.sum(),
        low.sum() / n.sum(),
        means @ n / n.sum(),
        afters.sum() / n.sum(),
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
        wrong = (valid & ~values[rows].isfinite()).any(1)
        if wrong.any():
            return NonFiniteError(name, rows[wrong].tolist())
    return NonFiniteError("weighted advantages", rows[valid.any(1)].tolist())
