"""The entropy part of EMPG: responses that are certain get more weight.

Source: arXiv 2509.09265, "Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents",
equations 10 and 12, as in WillDreamer/ARLArena at dc1da9f: recipe/shop_agent/ppo/core_algos.py, line 550::

    w = exp(-k h) / mean of exp(-k h),  h = (H - min H) / (max H - min H),  k = 1

with H the mean entropy of a response, and the mean, smallest and largest over responses. Left out: the bonus for the
clarity of the next step, and the mean that is subtracted from the advantages after that. There, a step of an agent
stands for a response, and the range is that of the batch (``scope=batch``). Nothing is frozen.
"""

from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import Setting, weighting
from cw_plugin.weights import Group


@weighting(
    scaled=False,
    needs_entropies=True,
    needs_several_responses=True,
    settings={"k": Setting(1.0, low=0, high=100)},
)
def empg(group: Group, k: float) -> Float[Tensor, " N"]:
    """Largest for all tokens of the response with the lowest mean entropy; 1 on average over responses."""
    of_responses, response = group.response_means(group.entropies.double())
    smallest, largest = of_responses.aminmax()
    g = (-k * (of_responses - smallest) / (largest - smallest + 1e-8)).exp()
    return (g / (g.mean() + 1e-8))[response]
