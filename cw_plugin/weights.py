"""The weights of CW-GRPO: the paper's three equations, in plain PyTorch, for the tokens of a prompt group.

Source: "Taming Extreme Tokens: Covariance-Aware GRPO with Gaussian-Kernel Advantage Reweighting", section 2.3.
For every prompt group, over its N valid response tokens (response i, position t)::

    c_it  = (log pi_it - mean(log pi)) * (A_i - mean(A))        Group.c         covariance of a token
    w_it  = exp(-c_it^2 / (2 sigma^2)),  sigma = std of {c_it}  gaussian        Gaussian kernel; 1 if all c are alike
    w~_it = w_it * N / sum(w)                                   token_weights   weights average 1 over the group

and the policy is trained on w~_it * A_i. No gradient flows through the weights. reweight.py applies them to a batch.
Other weightings, which take the place of ``gaussian``, are in weightings/.
"""

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.groups import GroupTokens
from cw_plugin.registry import Weighting, weighting


class Group(GroupTokens):
    """The tokens of a group, with ``log_probs`` and ``advantages`` of each, and the paper's quantities of them."""

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


@weighting(scaled=True, needs_several_responses=True)
def gaussian(group: Group) -> Float[Tensor, " N"]:
    """The paper's: less weight for covariances far from 0, on both sides."""
    return kernel(group.z)


def kernel(z: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The paper's kernel, which records show beside every weighting."""
    return torch.exp(-(z**2) / 2)


@weighting(scaled=False)
def none(group: Group) -> Float[Tensor, " N"]:
    """Plain GRPO: weight 1 for all."""
    return torch.ones_like(group.log_probs)


def token_weights(group: Group, weighting: Weighting = gaussian) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return w and w~ of a group's tokens. A weighting that is not scaled, unlike the paper's, is used as it is."""
    w = weighting(group)
    return w, w * (len(w) / w.sum(dtype=torch.float64)) if weighting.scaled else w


def centred(values: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The values less their mean, in float64: exactly 0 if all are equal.

    The paper computes both means "over responses". Here they run over the tokens of all responses to the prompt, so
    that mean(c) is exactly the token covariance whose sign drives entropy (Delta H ~ -eta Cov), and a long response
    counts for every token that it has.
    """
    # The sum of equal float32 values is exact in float64. That of float64 values is not, so the first one becomes 0.
    values = values - values[0] if values.dtype == torch.float64 else values.double()
    return values - values.mean()


def spread(c: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    """The standard deviation of c; infinity if no token is more extreme than another, so that every z is 0.

    It divides by N (ddof 0): the paper calls it the empirical deviation of the set {c_it}, and so it is defined for one
    token too. Compared with ddof 1, it changes by a factor 1 - 1/(2N), one part in 10^4 for 5,000 tokens.

    The paper is silent about sigma = 0 (equal rewards, one token, equal log-probs). Then no token is more extreme than
    another, so w = w~ = 1. The same holds if |mean(c)| >= 10 sigma: all covariances are nearly equal, so every w would
    be nearly 0, and w~ as good as chance (0 / 0, where all w underflow). This happens only in groups of very few tokens
    (with two, sigma is always 0).
    """
    sigma = c.std(correction=0)
    alike = c.mean().abs() >= 10 * sigma
    return torch.where(alike, torch.inf, sigma)
