"""What the weights did to a batch: sums over its tokens, which several processes can add up, and statistics of them."""

import math
import sys
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.weights import Group

_LOG2_E = math.log2(math.e)
EXTREME = math.sqrt(2 * math.log(2))  # 1.18: at this |z|, the Gaussian kernel is 1/2


@dataclass(frozen=True)
class CovarianceStatistics:
    """What the weights did, over all valid tokens; all 0 if there is none.

    ``w`` is what the weighting gives, before it is scaled. With ``weights="none"`` it is 1, and the covariances are
    plain GRPO's. A token is *extreme* if the Gaussian kernel gives it w < 0.5, that is |c| > 1.18 sigma, whatever the
    weighting is. So a run of plain GRPO shows what the Gaussian kernel would take.
    """

    sigma: float  # mean of sigma over the groups with a signal; 0 if there is none
    signal_share: float  # share of groups (with a valid token) whose covariances differ
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
    reweighted_groups: float = 0.0  # those in which some tokens are more extreme than others: sigma is finite
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

    @property
    def is_finite(self) -> bool:
        """Whether the weighted advantage of every token is a finite number: ``c_after`` is a sum over all of them."""
        return math.isfinite(self.c_after)

    def statistics(self) -> CovarianceStatistics:
        """The statistics of all tokens that are summed here."""
        return CovarianceStatistics(
            sigma=_ratio(self.sigma, self.reweighted_groups),
            signal_share=_ratio(self.reweighted_groups, self.groups),
            weight_mean=_ratio(self.w, self.tokens),
            weight_min=self.w_min if self.tokens else 0.0,
            effective_sample_share=_ratio(self.effective_tokens, self.tokens),
            downweighted_share=_ratio(self.downweighted_tokens, self.tokens),
            covariance_before=_ratio(self.c, self.tokens),
            covariance_after=_ratio(self.c_after, self.tokens),
            covariance_max=self.c_max,
            covariance_min=self.c_min,
            extreme_gradient_share=_ratio(self.extreme_gradient, self.gradient),
            extreme_balance=_ratio(self.extreme_c, self.extreme_abs_c),
        )


ADDED = tuple(field.name for field in fields(Sums) if field.name not in ("w_min", "c_min", "c_max"))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def sums_of_group(
    group: Group,
    w: Float[Tensor, " N"],
    weighted: Float[Tensor, " N"],
) -> Sums:
    """The sums of one group, of its weights w before they are scaled, and of w~ A.

    The tensors stay on their device. One transfer brings all numbers to Python, where the rest is computed.
    """
    c = group.c
    # 1 or 0 in place of a boolean, which PyTorch makes, and multiplies by, several times more slowly.
    extreme = group.z.abs().gt_(EXTREME).to(c.dtype)
    downweighted = w.clone().lt_(0.5)
    # In float32, A^2 would overflow at an A of 1e19.
    gradient = group.log_probs.mul(_LOG2_E).exp2_().sub_(1).double().mul_(group.advantages).square_()  # faster than exp
    c_min, c_max = c.aminmax()
    on_device = {
        "sigma": group.sigma,
        "w": w.sum(dtype=torch.float64),
        "w_squared": w.square().sum(dtype=torch.float64),
        "downweighted_tokens": downweighted.sum(dtype=torch.float64),
        "c": c.sum(),
        "c_after": group.deviation @ weighted.double(),
        "gradient": gradient.sum(),
        "extreme_gradient": gradient @ extreme,
        "extreme_c": c @ extreme,
        "extreme_abs_c": c.abs() @ extreme,
        "w_min": w.min().double(),
        "c_min": c_min,
        "c_max": c_max,
    }
    found = dict(zip(on_device, torch.stack(list(on_device.values())).tolist(), strict=True))
    is_reweighted = math.isfinite(found["sigma"])
    w_squared = max(found.pop("w_squared"), sys.float_info.min)  # which is 0 if every weight is
    found |= {
        "sigma": found["sigma"] if is_reweighted else 0.0,
        "effective_tokens": found["w"] * found["w"] / w_squared,
        "c_min": min(found["c_min"], 0.0),
        "c_max": max(found["c_max"], 0.0),
    }
    return Sums(tokens=len(c), groups=1, reweighted_groups=float(is_reweighted), **found)
