"""What a weighting gets: the valid tokens of one prompt group, and the paper's quantities of them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cw_plugin.errors import OptionsError


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

    @property
    def entropies(self) -> Float[Tensor, " N"]:
        """H of the policy at each token's position, in nats; an OptionsError if the weighting does not declare it."""
        if self.known_entropies is None:
            raise OptionsError(
                "the weighting reads entropies without saying so", fix="declare it with needs_entropies=True"
            )
        return self.known_entropies

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
