"""The weights of CW-GRPO: the paper's three equations, in plain PyTorch, and what applies them to a batch.

Source: "Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting", section 2.3.
For every prompt group, over its N valid response tokens (response i, position t)::

    c_it  = (log pi_it - mean(log pi)) * (A_i - mean(A))        Group.c         covariance of a token
    w_it  = exp(-c_it^2 / (2 sigma^2)),  sigma = std of {c_it}  gaussian        Gaussian kernel; 1 if all c are alike
    w~_it = w_it * N / sum(w)                                   token_weights   weights average 1 over the group

and the policy is trained on w~_it * A_i. No gradient flows through the weights. Other weightings, which take the place
of ``gaussian``, are in weightings/.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cw_plugin.checks import check_shapes, checked_weights, non_finite_error
from cw_plugin.errors import OptionsError
from cw_plugin.groups import put, rows_of_groups, take
from cw_plugin.statistics import CovarianceStatistics, Sums, TokenWeights, sums_of_group
from cw_plugin.weighting import Weighting, load, weighting


@dataclass(frozen=True)
class Group:
    """The N > 0 valid tokens of the responses to a prompt, row after row; with scope "batch", those of a whole batch.

    All values are of the policy before the update. The properties are computed when they are first asked for.

    Attributes:
        log_probs: log pi of each token, in nats, float32 or float64.
        advantages: A of each token, that of its response, in the same dtype.
        known_entropies: of the policy at each token's position, in nats and that dtype; None if the weighting declares
            that it needs none.
        mask: where the tokens are in the rows of the group.
        seed: the step, and the number of the group in the batch.
    """

    log_probs: Float[Tensor, " N"]
    advantages: Float[Tensor, " N"]
    known_entropies: Float[Tensor, " N"] | None
    mask: Bool[np.ndarray, "rows time"] | Bool[Tensor, "rows time"]
    seed: tuple[int, int] = (0, 0)

    @cached_property
    def deviation(self) -> Float[Tensor, " N"]:
        """``log pi - mean(log pi)``, float64."""
        return centred(self.log_probs)

    @cached_property
    def c(self) -> Float[Tensor, " N"]:
        """The covariance of each token, ``(log pi - mean(log pi)) (A - mean(A))``, float64."""
        return self.deviation * centred(self.advantages)

    @cached_property
    def sigma(self) -> Float[Tensor, ""]:
        """The standard deviation of c; infinite if no token is more extreme than another."""
        return spread(self.c)

    @cached_property
    def z(self) -> Float[Tensor, " N"]:
        """``c / sigma``, in the log-probs' dtype; 0 if no token is more extreme than another."""
        return (self.c / self.sigma).to(self.log_probs.dtype)

    @property
    def entropies(self) -> Float[Tensor, " N"]:
        """H of the policy at each token's position, in nats; an OptionsError if the weighting does not declare it."""
        if self.known_entropies is None:
            raise OptionsError(
                "the weighting reads entropies without saying so", fix="declare it with needs_entropies=True"
            )
        return self.known_entropies

    @cached_property
    def row(self) -> Int[Tensor, " N"]:
        """The row of each token within the group: tokens of a response share it."""
        return torch.as_tensor(self.mask).nonzero()[:, 0]

    @cached_property
    def position(self) -> Int[Tensor, " N"]:
        """The column of each token."""
        return torch.as_tensor(self.mask).nonzero()[:, 1]

    @cached_property
    def generator(self) -> torch.Generator:
        """Random numbers that depend on the step and the group alone, for weightings that draw."""
        seed = np.random.SeedSequence([number % 2**32 for number in self.seed])
        return torch.Generator().manual_seed(int(seed.generate_state(1)[0]))


@weighting(scaled=True)
def gaussian(group: Group) -> Float[Tensor, " N"]:
    """The paper's: less weight for covariances far from 0, on both sides."""
    return kernel(group.z)


def kernel(z: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The paper's kernel."""
    return torch.exp(-(z**2) / 2)


@weighting(scaled=False)
def none(group: Group) -> Float[Tensor, " N"]:
    """Plain GRPO: weight 1 for all."""
    return torch.ones_like(group.log_probs)


def token_weights(group: Group, weighting: Weighting = gaussian) -> TokenWeights:
    """The weights of a group's tokens, and the paper's quantities of them, on the device of the group."""
    # The paper's own needs no check, and computes the quantities once.
    w = gaussian(group) if weighting is gaussian else checked_weights(weighting, group)
    weight = w * (len(w) / w.sum(dtype=torch.float64)) if weighting.scaled else w
    return TokenWeights(group.deviation, group.c, group.sigma, group.z, w, weight)


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


def reweight(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    weights: str | Weighting = "gaussian",
    entropies: Float[Tensor, "rows time"] | None = None,
    step: int = 0,
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token.

    Tensors may live on any device. Each is copied to the CPU once, where the weights are computed, and the result is
    copied back once. :func:`reweight_one_group` copies nothing.

    Args:
        log_probs: log pi of each sampled token, in nats. Values where ``response_mask`` is 0 do not matter.
        advantages: one for each response, as in GRPO, or one for each token.
        response_mask: nonzero where a token belongs to the response, of any dtype. Holes are allowed.
        group: a number for each row, the same for all responses to a prompt; ``None`` makes the batch one group.
        weights: a weighting, or its name (weightings/README.md); "none" gives every token weight 1, with the same
            statistics.
        entropies: of the policy at each token's position, in nats, for weightings that need them.
        step: of training. With the group's number it is the seed of weightings that draw.

    Returns:
        The reweighted advantages (float32; float64 for float64 log-probs) on the device of ``log_probs``, 0 where the
        mask is 0, and the statistics.

    Raises:
        NonFiniteError: the weighted advantage of a valid token is NaN or infinite, because its log-prob, entropy or
            advantage is, or because they are too large; the message names the rows.
        OptionsError: there is no such weighting, it lacks entropies, fails, or returns what cannot be a weight.
        ValueError: shapes that do not belong together.
    """
    weighting = load(weights) if isinstance(weights, str) else weights
    weighted, sums = reweight_and_sum(log_probs, advantages, response_mask, group, weighting, entropies, step)
    return weighted, sums.statistics()


def reweight_and_sum(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None,
    weighting: Weighting,
    entropies: Float[Tensor, "rows time"] | None,
    step: int,
) -> tuple[Float[Tensor, "rows time"], Sums]:
    """As :func:`reweight`, but with the sums that the statistics are made of: several processes can add up theirs."""
    entropies = needed_entropies(weighting, entropies)
    check_shapes(log_probs, advantages, response_mask, group, entropies)
    device = log_probs.device
    log_probs, advantages, valid = (values.cpu() for values in _prepared(log_probs, advantages, response_mask))
    entropies = None if entropies is None else entropies.detach().to(log_probs.dtype).cpu()
    group = torch.zeros(len(log_probs), dtype=torch.long) if group is None else group.cpu()
    result, sums, refused = torch.zeros_like(log_probs).numpy(), Sums(), []
    for rows in rows_of_groups(group):
        valid_here = valid.numpy()[rows]
        if not valid_here.any():
            continue
        x, a = take(log_probs.numpy()[rows], valid_here), take(advantages.numpy()[rows], valid_here)
        h = None if entropies is None else take(entropies.numpy()[rows], valid_here)
        tokens = token_weights(Group(x, a, h, valid_here, seed=(step, int(group[rows[0]]))), weighting)
        weighted = tokens.weight * a
        of_group = sums_of_group(x, a, tokens, weighted)
        if of_group.is_finite:
            result[rows] = put(weighted, valid_here)
            sums += of_group
        else:
            refused.append(rows)
    if refused:
        of_refused = torch.from_numpy(np.sort(np.concatenate(refused)))
        raise non_finite_error(log_probs, advantages, valid, of_refused, entropies)
    return torch.from_numpy(result).to(device), sums


def needed_entropies(
    weighting: Weighting, entropies: Float[Tensor, "rows time"] | None
) -> Float[Tensor, "rows time"] | None:
    """The entropies if a weighting needs them, else None; an OptionsError if it needs them, and there are none."""
    if not weighting.needs_entropies:
        return None
    if entropies is None:
        problem = f"weights={weighting.name!r} needs the entropy of each position, and got none"
        raise OptionsError(problem, fix="pass entropies, (rows, time)")
    return entropies


def reweight_one_group(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """As :func:`reweight` for a batch that is one group, with the paper's kernel, on the device of the tensors.

    A policy loss calls it once for each micro-batch, where a copy to the CPU would wait for the GPU's queue.
    """
    check_shapes(log_probs, advantages, response_mask)
    log_probs, advantages, valid = _prepared(log_probs, advantages, response_mask)
    of_tokens = advantages if advantages.ndim == 2 else advantages[:, None].expand(valid.shape)
    places = valid.nonzero(as_tuple=True)
    x, a = log_probs[places], of_tokens[places]
    if len(x) == 0:
        return torch.zeros_like(log_probs), Sums().statistics()
    tokens = token_weights(Group(x, a, None, valid))
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
