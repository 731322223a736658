"""``policy_loss.loss_mode=cw_grpo``: verl's vanilla policy loss on advantages reweighted within the micro-batch.

Prefer the estimator: it is the paper's method, and its weights do not depend on how the batch is sharded. The loss
is for advantages of another estimator (such as RLOO or GAE), and for many off-policy updates per batch, where the
current policy is no longer the one that the estimator's weights were computed with. Its means, sigma and normalisation
run over one micro-batch of one rank, because that is all a policy loss sees (verl's clip_cov and kl_cov do the same).
So they change with the micro-batch size.
"""

import time

from jaxtyping import Float, Shaped
from torch import Tensor

from cw_plugin.reweight import reweight_micro_batch


def compute_policy_loss_cw_grpo(
    old_log_prob: Float[Tensor, "rows time"],
    log_prob: Float[Tensor, "rows time"],
    advantages: Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    loss_agg_mode: str = "token-mean",
    config: object = None,
    rollout_is_weights: Float[Tensor, "rows time"] | None = None,
) -> tuple[Tensor, dict[str, object]]:
    """The vanilla loss of verl (clipping, dual clip, rollout correction, aggregation) with w~ A in place of A.

    Weights come from the current policy's log-probs, without gradient. Arguments and result are those of verl's
    ``compute_policy_loss_vanilla``; the metrics gain those of the weights.

    Raises:
        NonFiniteError: NaN or infinity at a valid token; its rows are those of the micro-batch.
    """
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    started = time.perf_counter()
    reweighted, statistics = reweight_micro_batch(log_prob, advantages, response_mask)
    metrics = statistics.as_metrics(time.perf_counter() - started)
    loss, vanilla_metrics = get_policy_loss_fn("vanilla")(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=reweighted,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    return loss, {**vanilla_metrics, **metrics}
