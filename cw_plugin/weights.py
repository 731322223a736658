"""The weights of CW-GRPO: the paper's three equations, in plain PyTorch.

Source: "Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting", section 2.3.
For every prompt group, over its N valid response tokens (response i, position t)::

    c_it  = (log pi_it - mean(log pi)) * (A_i - mean(A))        covariance of a token
    w_it  = exp(-c_it^2 / (2 sigma^2)),  sigma = std of {c_it}  Gaussian kernel
    w~_it = w_it * N / sum(w)                                   weights average 1 over the group

and the policy is trained on w~_it * A_i. No gradient flows through the weights.

Where the paper is silent, or can be read in two ways:

* The paper computes both means "over responses". Here they run over the tokens of all responses to the prompt, so that
  mean(c) is exactly the token covariance whose sign drives entropy (Delta H ~ -eta Cov), and a long response counts for
  every token that it has.
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
from jaxtyping import Bool, Float, Int, Shaped
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

    def as_metrics(self, seconds: float) -> dict[str, float]:
        """The statistics under the names that loggers show, and the seconds that the weights took."""
        return {f"cw_grpo/{name}": value for name, value in {**vars(self), "seconds": seconds}.items()}


@dataclass(frozen=True)
class Sums:
    """What the statistics are made of: sums over the valid tokens of one group, or of several groups added up."""

    tokens: float = 0.0
    groups: float = 0.0  # those with a valid token
    reweighted_groups: float = 0.0  # those with sigma > 0
    sigma: float = 0.0  # one for each group
    w: float = 0.0
    effective_tokens: float = 0.0  # (sum w)^2 / sum w^2, one for each group
    downweighted_tokens: float = 0.0  # those with w < 0.5
    c: float = 0.0
    c_after: float = 0.0  # (log pi - mean(log pi)) w~ A
    gradient: float = 0.0  # A^2 (1 - pi)^2
    extreme_gradient: float = 0.0  # A^2 (1 - pi)^2 of extreme tokens
    extreme_c: float = 0.0  # c of extreme tokens
    extreme_abs_c: float = 0.0  # |c| of extreme tokens
    # Not sums, but the smallest and the largest value; the range of c includes 0.
    w_min: float = math.inf
    c_min: float = 0.0
    c_max: float = 0.0

    def __add__(self, other: "Sums") -> "Sums":
        added = {name: getattr(self, name) + getattr(other, name) for name in ADDED}
        return Sums(
            **added,
            w_min=min(self.w_min, other.w_min),
            c_min=min(self.c_min, other.c_min),
            c_max=max(self.c_max, other.c_max),
        )

    def statistics(self) -> CovarianceStatistics:
        """The statistics of all tokens that are summed here."""
        if self.tokens == 0:
            return CovarianceStatistics(**{field.name: 0.0 for field in fields(CovarianceStatistics)})
        return CovarianceStatistics(
            sigma=_ratio(self.sigma, self.reweighted_groups),
            signal_share=self.reweighted_groups / self.groups,
            weight_mean=self.w / self.tokens,
            weight_min=self.w_min,
            effective_sample_share=self.effective_tokens / self.tokens,
            downweighted_share=self.downweighted_tokens / self.tokens,
            covariance_before=self.c / self.tokens,
            covariance_after=self.c_after / self.tokens,
            covariance_max=self.c_max,
            covariance_min=self.c_min,
            extreme_gradient_share=_ratio(self.extreme_gradient, self.gradient),
            extreme_balance=_ratio(self.extreme_c, self.extreme_abs_c),
        )


ADDED = tuple(field.name for field in fields(Sums) if field.name not in ("w_min", "c_min", "c_max"))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def gaussian(z: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The paper's kernel, exp(-z^2 / 2)."""
    return z.square().mul_(-0.5 * _LOG2_E).exp2_()  # exp2 takes half the time of exp


class TokenWeights(NamedTuple):
    """The paper's quantities for the N valid tokens of one group."""

    deviation: Float[Tensor, " N"]  # log pi - mean(log pi), float64
    c: Float[Tensor, " N"]
    mean: float  # the mean of c, which is Cov(log pi, A)
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
    gaussian_w = gaussian(z)
    if kernel == "gaussian":
        w = gaussian_w
    elif kernel == "none":
        w = checked(torch.ones_like)(z)
    else:
        w = checked(kernel)(z)
    total = float(w.sum(dtype=torch.float64))
    to_mean_1 = len(w) / total if total else math.nan  # every w is 0 if c is too large for its dtype
    return TokenWeights(deviation, c, mean, sigma, gaussian_w, w, total, w * to_mean_1)


def _centred(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The values less their mean, in float64: exactly 0 if all are equal."""
    # The sum of equal float32 values is exact in float64. That of float64 values is not, so the first one becomes 0.
    values = values - values[0] if values.dtype == torch.float64 else values.double()
    return values.sub_(values.sum() / len(values))


def reweight(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    kernel: str | Kernel = "gaussian",
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token.

    Tensors may live on any device. Log-probs, advantages and mask are copied to the CPU once, where the weights are
    computed, and the result is copied back once.

    Args:
        log_probs: log pi of each sampled token, in nats. Values where ``response_mask`` is 0 do not matter.
        advantages: one for each response, as in GRPO, or one for each token.
        response_mask: nonzero where a token belongs to the response, of any dtype. Holes are allowed.
        group: a number for each row, the same for all responses to a prompt; ``None`` makes the batch one group.
        kernel: "gaussian"; "none", which gives every token weight 1, with the same statistics; "module:function"; or a
            function from z = c / sigma to w. It gets one group's tokens at a time, as a tensor (N,) on the CPU.

    Returns:
        The reweighted advantages (float32; float64 for float64 log-probs) on the device of ``log_probs``, 0 where the
        mask is 0, and the statistics.

    Raises:
        NonFiniteError: the weighted advantage of a valid token is NaN or infinite, because its log-prob or advantage
            is, or because they are too large; the message names the rows.
        OptionsError: there is no such kernel, it fails, or it returns what cannot be a weight.
        ValueError: shapes that do not belong together.
    """
    weighted, sums = reweight_and_sum(log_probs, advantages, response_mask, group, kernel)
    return weighted, sums.statistics()


@torch.no_grad()
def reweight_and_sum(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None,
    kernel: str | Kernel,
) -> tuple[Float[Tensor, "rows time"], Sums]:
    """As :func:`reweight`, but with the sums that the statistics are made of: several processes can add up theirs."""
    group = torch.zeros(len(log_probs), dtype=torch.long) if group is None else group.cpu()
    _check_shapes(log_probs, advantages, response_mask, group)
    device, dtype = log_probs.device, torch.promote_types(log_probs.dtype, torch.float32)
    x_of_batch, a_of_batch = log_probs.cpu().to(dtype).numpy(), advantages.cpu().to(dtype).numpy()
    valid_of_batch = response_mask.bool().cpu().numpy()
    result = np.zeros(log_probs.shape, x_of_batch.dtype)
    sums, refused = Sums(), []
    for rows in _rows_of_groups(group):
        valid = valid_of_batch[rows]
        if not valid.any():
            continue
        x, a = _take(x_of_batch[rows], valid), _take(a_of_batch[rows], valid)
        tokens = token_weights(x, a, kernel)
        weighted = tokens.weight * a
        if weighted.isfinite().all():
            result[rows] = _put(weighted, valid)
            sums += _sums(x, a, tokens, weighted)
        else:
            refused.append(rows)
    if refused:
        raise _non_finite(x_of_batch, a_of_batch, valid_of_batch, np.sort(np.concatenate(refused)))
    return torch.from_numpy(result).to(device), sums


def _check_shapes(log_probs: Tensor, advantages: Tensor, response_mask: Tensor, group: Tensor) -> None:
    shape, by_row = log_probs.shape, log_probs.shape[:1]
    given = [tuple(values.shape) for values in (log_probs, advantages, response_mask, group)]
    if len(shape) != 2 or given[1] not in (shape, by_row) or given[2:] != [shape, by_row]:
        shapes = "log_probs {}, advantages {}, response_mask {} and group {}".format(*given)
        raise ValueError(f"{shapes} do not fit; give (rows, time), (rows,) or (rows, time), (rows, time) and (rows,)")


def _rows_of_groups(group: Int[Tensor, " rows"]) -> list[np.ndarray]:
    """The rows of each group, in ascending order."""
    _, starts = np.unique(np.sort(group.numpy()), return_index=True)
    return np.split(group.argsort(stable=True).numpy(), starts[1:])


def _take(
    values: Float[np.ndarray, " rows"] | Float[np.ndarray, "rows time"], valid: Bool[np.ndarray, "rows time"]
) -> Float[Tensor, " N"]:
    """The values of the valid tokens, row after row; ``values`` has one for each row, or one for each token.

    NumPy takes values at a mask, and puts them there, several times faster than PyTorch.
    """
    return torch.from_numpy(values.repeat(valid.sum(1)) if values.ndim == 1 else values[valid])


def _put(tokens: Float[Tensor, " N"], valid: Bool[np.ndarray, "rows time"]) -> Float[np.ndarray, "rows time"]:
    """The rows of which :func:`_take` would take these tokens, 0 where no token is valid."""
    rows = np.zeros(valid.shape, tokens.numpy().dtype)
    rows[valid] = tokens.numpy()
    return rows


def _sums(x: Float[Tensor, " N"], a: Float[Tensor, " N"], tokens: TokenWeights, weighted: Float[Tensor, " N"]) -> Sums:
    """The sums of one group, from its log-probs, its advantages, and the quantities and ``w~ A`` of its tokens."""
    c, w = tokens.c, tokens.w
    c_min, c_max = c.aminmax()
    extreme = (tokens.gaussian < 0.5).to(c.dtype)  # 1 or 0, by which PyTorch multiplies faster than by a boolean
    gradient = (x * _LOG2_E).exp2_().sub_(1).double().mul_(a).square_()  # float32 would overflow at an A of 1e19
    extreme_c = c * extreme
    return Sums(
        tokens=len(c),
        groups=1,
        reweighted_groups=1 if tokens.sigma > 0 else 0,
        sigma=tokens.sigma,
        w=tokens.total,
        effective_tokens=len(c) ** 2 / float(tokens.weight.square().sum()),  # w~ sums to len(c)
        downweighted_tokens=float(torch.count_nonzero(w < 0.5)),
        c=tokens.mean * len(c),
        c_after=float(tokens.deviation @ weighted.double()),
        gradient=float(gradient.sum()),
        extreme_gradient=float(gradient @ extreme.double()),
        extreme_c=float(extreme_c.sum()),
        extreme_abs_c=float(extreme_c.abs().sum()),
        w_min=float(w.min()),
        c_min=min(float(c_min), 0.0),
        c_max=max(float(c_max), 0.0),
    )


def _non_finite(log_probs: np.ndarray, advantages: np.ndarray, valid: np.ndarray, rows: np.ndarray) -> NonFiniteError:
    """The error that names the rows, of those in groups whose weighted advantages are not finite."""
    of_tokens = advantages if advantages.ndim == 2 else advantages[:, None]
    for name, values in (("log_probs", log_probs), ("advantages", of_tokens)):
        wrong = (valid[rows] & ~np.isfinite(values[rows])).any(1)
        if wrong.any():
            return NonFiniteError(name, rows[wrong].tolist())
    return NonFiniteError("weighted advantages", rows[valid[rows].any(1)].tolist())
