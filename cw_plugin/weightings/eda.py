"""EDA, the entropy-driven advantage of EDGE-GRPO: responses that are certain get more weight.

Source: arXiv 2507.21848, "EDGE-GRPO: Entropy-Driven GRPO with Guided Error Correction for Advantage Diversity"::

    w = mean of H over responses / H of the response,  H of a response = mean of its tokens' entropies

Its authors' code, ZhangXJ199/EDGE-GRPO at cbe13ca: trl_edge/trainer/grpo_aha_trainer.py, line 1230. Left out: the
guided error correction. There H is the current policy's, padding counts as tokens, the gradient also flows through H,
and the mean runs over the micro-batches of all processes (with ``scope=batch``, here over the whole batch). Here H of a
response is at least 1e-6.
"""

from jaxtyping import Float
from torch import Tensor

from cw_plugin.registry import weighting
from cw_plugin.weights import Group


@weighting(scaled=False, needs_entropies=True, needs_several_responses=True)
def eda(group: Group) -> Float[Tensor, " N"]:
    """Above 1 for all tokens of a response whose mean entropy is below that of the others."""
    of_responses, response = group.response_means(group.entropies.double())
    of_responses = of_responses.clamp(min=1e-6)
    return (of_responses.mean() / of_responses)[response]
