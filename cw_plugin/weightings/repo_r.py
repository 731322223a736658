"""REPO-R: improbable tokens of good responses get more weight, and those of bad responses less.

Source: arXiv 2603.11682, "Entropy-Preserving Reinforcement Learning", appendix D.2::

    w = max(0, 1 - zeta sign(A) log pi)

as in SkyRL's pull request 1896, which was opened with zeta = 0.01. Its branch at 367fcb5 begins with 0.001, and says
that the paper keeps abs(zeta) between 0.0001 and 0.05. Left out: the controller that halves, doubles or turns zeta to
reach a target entropy. Frozen: log pi is that of the policy before the update; there it is the current policy's.
"""

from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(scaled=False, settings={"zeta": Setting(0.01, low=-1, high=1)})
def repo_r(group: Group, zeta: float) -> Float[Tensor, " N"]:
    """For zeta > 0, above 1 for good responses and below 1 for bad ones, the more so the less probable a token is."""
    return (1 - zeta * group.advantages.sign() * group.log_probs).clamp(min=0)
