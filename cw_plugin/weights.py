"""The weights of CW-GRPO: the paper's three equations, in plain PyTorch.

Source: "Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting", section 2.3.
For every prompt group, over its N valid response tokens (response i, position t)::

    c_it  = (log pi_it - mean(log pi)) * (A_i - mean(A))        covariance of a token
    w_it  = exp(-c_it^2 / (2 sigma^2)),  sigma = std of {c_it}  Gaussian kernel
    w~_it = w_it * N / sum(w)                                   weights average 1 over the group

and the policy is trained on w~_it * A_i. No gradient flows through the weights.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cw_plugin.groups import check_shapes, non_finite_error, put, rows_of_groups, take
from cw_plugin.kernels import Kernel, checked
from cw_plugin.statistics import CovarianceStatistics, Sums, TokenWeights, sums_of_group


def gaussian(z: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The paper's kernel."""
    return torch.exp(-(z**2) / 2)


def token_weights(
    log_probs: Float[Tensor, " N"], advantages: Float[Tensor, " N"], kernel: Kernel = gaussian
) -> TokenWeights:
    """The paper's equations for the N > 0 valid tokens of one group, float32 or float64, on any device."""
    deviation = centred(log_probs)
    c = deviation * centred(advantages)
    sigma = spread(c)
    z = (c / sigma).to(log_probs.dtype)
    w = kernel(z)
    weight = w * (len(w) / w.sum(dtype=torch.float64))
    return TokenWeights(deviation, c, sigma, z, w, weight)


# Where the paper is silent, or can be read in two ways:
#
# * The paper computes both means "over responses". Here they run over the tokens of all responses to the prompt, so
#   that mean(c) is exactly the token covariance whose sign drives entropy (Delta H ~ -eta Cov), and a long response
#   counts for every token that it has.
# * sigma divides by N (ddof 0): the paper calls it the empirical deviation of the set {c_it}, and so it is defined for
#   one token too. Compared with ddof 1, sigma changes by a factor 1 - 1/(2N), one part in 10^4 for 5,000 tokens.
# * sigma = 0 (equal rewards, one token, equal log-probs): no token is more extreme than another, so w = w~ = 1. The
#   same holds if |mean(c)| >= 10 sigma. Then all covariances are nearly equal, and every w would underflow, which gives
#   0 / 0. This happens only in groups of very few tokens (with two, sigma is always 0).
# * A group without a valid token has weight 0 everywhere and takes no part in the statistics.


def centred(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The values less their mean, in float64: exactly 0 if all are equal."""
    # The sum of equal float32 values is exact in float64. That of float64 values is not, so the first one becomes 0.
    values = values - values[0] if values.dtype == torch.float64 else values.double()
    return values - values.mean()


def spread(c: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    """The standard deviation of c; infinity if no token is more extreme than another, so that every z is 0."""
    sigma = c.std(correction=0)
    alike = c.mean().abs() >= 10 * sigma
    return torch.where(alike, torch.inf, sigma)


def kernel_function(kernel: str | Kernel) -> Kernel:
    """The function from z to w that an option ``kernel`` names."""
    if kernel == "gaussian":
        return gaussian
    if kernel == "none":
        return checked(torch.ones_like)
    return checked(kernel)


def reweight(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    kernel: str | Kernel = "gaussian",
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token.

    Tensors may live on any device. Log-probs, advantages and mask are copied to the CPU once, where the weights are
    computed, and the result is copied back once. :func:`reweight_one_group` copies nothing.

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


def reweight_and_sum(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None,
    kernel: str | Kernel,
) -> tuple[Float[Tensor, "rows time"], Sums]:
    """As :func:`reweight`, but with the sums that the statistics are made of: several processes can add up theirs."""
    check_shapes(log_probs, advantages, response_mask, group)
    function = kernel_function(kernel)
    device = log_probs.device
    log_probs, advantages, valid = (values.cpu() for values in _prepared(log_probs, advantages, response_mask))
    if group is None:
        group = torch.zeros(len(log_probs), dtype=torch.long)
    result, sums, refused = torch.zeros_like(log_probs).numpy(), Sums(), []
    for rows in rows_of_groups(group.cpu()):
        valid_here = valid.numpy()[rows]
        if not valid_here.any():
            continue
        x, a = take(log_probs.numpy()[rows], valid_here), take(advantages.numpy()[rows], valid_here)
        tokens = token_weights(x, a, function)
        weighted = tokens.weight * a
        of_group = sums_of_group(x, a, tokens, weighted)
        if of_group.is_finite:
            result[rows] = put(weighted, valid_here)
            sums += of_group
        else:
            refused.append(rows)
    if refused:
        raise non_finite_error(log_probs, advantages, valid, torch.from_numpy(np.sort(np.concatenate(refused))))
    return torch.from_numpy(result).to(device), sums


def reweight_one_group(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """As :func:`reweight` for a batch that is one group, with the paper's kernel, on the device of the tensors.

    A policy loss calls it once for each micro-batch, where a copy to the CPU would wait for the GPU's queue.
    """
    check_shapes(log_probs, advantages, response_mask, None)
    log_probs, advantages, valid = _prepared(log_probs, advantages, response_mask)
    of_tokens = advantages if advantages.ndim == 2 else advantages[:, None].expand(valid.shape)
    places = valid.nonzero(as_tuple=True)
    x, a = log_probs[places], of_tokens[places]
    if len(x) == 0:
        return torch.zeros_like(log_probs), Sums().statistics()
    tokens = token_weights(x, a)
    weighted = tokens.weight * a
    sums = sums_of_group(x, a, tokens, weighted)
    if not sums.is_finite:
        raise non_finite_error(log_probs, advantages, valid, torch.arange(len(valid), device=valid.device))
    return torch.zeros_like(log_probs).index_put(places, weighted), sums.statistics()


def _prepared(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "..."], Bool[Tensor, "rows time"]]:
    """Log-probs and advantages in one dtype, float32 or float64, without their gradients; and a mask of booleans."""
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    return log_probs.detach().to(dtype), advantages.detach().to(dtype), response_mask != 0
