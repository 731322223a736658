"""``algorithm.adv_estimator=cw_grpo``: verl's GRPO advantages times the weights of the paper."""

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from cw_plugin.errors import HostError, NonFiniteError
from cw_plugin.hosts.verl import NAME, TESTED, current_run
from cw_plugin.hosts.verl.accepted_settings import AlgorithmConfig, read_options
from cw_plugin.records.write import Batch
from cw_plugin.weights import reweight


@dataclass(frozen=True)
class TrainerBatch:
    """What verl's trainer knows while it computes advantages, but does not pass to an estimator (see hooks.py).

    Attributes:
        old_log_probs: log-probs of the policy before the update, in nats.
        keys: "{uid}_{session}_{output}" for each row; None under RayPPOTrainer.
        read_sequences: returns the token ids of prompt and response for some rows.
    """

    old_log_probs: Float[Tensor, "rows time"] | None
    keys: Sequence[str] | None
    read_sequences: Callable[[Sequence[int]], Iterable[tuple[Tensor, Tensor]]]


batch_of_trainer: ContextVar[TrainerBatch | None] = ContextVar("cw_grpo_batch", default=None)


def compute_cw_grpo_advantage(
    token_level_rewards: Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    index: np.ndarray,
    config: AlgorithmConfig | None = None,
    old_log_probs: Float[Tensor, "rows time"] | None = None,
    batch: Any = None,
    final_index: Int[Tensor, " rows"] | None = None,
    **_: object,
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "rows time"]]:
    """Covariance-weighted GRPO advantages, an estimator of verl's registry.

    Log-probs come from ``old_log_probs``, else from ``batch["old_log_probs"]``, else from the hook. So if verl itself
    passes them, those are used.

    Args:
        token_level_rewards: rewards; each row is summed, as in GRPO.
        response_mask: nonzero for the tokens that are trained on.
        index: the uid of each row's prompt, (rows,) of any hashable.
        config: verl's ``algorithm`` configuration.
        old_log_probs: log-probs of the policy before the update, in nats.
        batch: a TensorDict or another mapping, which may hold ``old_log_probs``.
        final_index: for each row, the row of the final output of its session, which alone is scored. Versions of verl
            whose estimators declare their fields pass it.

    Returns:
        advantages and returns, the same float32 tensor as in verl's outcome estimators, 0 off the mask.

    Raises:
        HostError: no log-probs reached the estimator.
        NonFiniteError: NaN or infinity at a valid token.
        OptionsError: unknown option.
    """
    started = time.perf_counter()
    options = read_options(config)
    trainer_batch = batch_of_trainer.get()
    log_probs = _old_log_probs(old_log_probs, batch, trainer_batch)
    if final_index is not None:
        advantages = _grpo_advantages_of_sessions(token_level_rewards, response_mask, index, config, final_index)
    elif trainer_batch is not None and trainer_batch.keys is not None:
        advantages = _grpo_advantages_of_v1(token_level_rewards, response_mask, index, config, trainer_batch.keys)
    else:
        advantages = _grpo_advantages(token_level_rewards, index, config)
    group = _group_numbers(index)
    scope = group if options.scope == "group" else None
    try:
        weighted, statistics = reweight(log_probs, advantages, response_mask, scope, options.kernel)
    except NonFiniteError as error:
        uids = ", ".join(str(index[row]) for row in error.rows[:20])
        raise NonFiniteError(error.what, error.rows, f" Their uids: {uids}.") from error
    run = current_run.current()
    if run is not None:
        # verl merges several values of one name by what the name contains: with "max" the largest, with "min" (as in
        # "timing") the smallest, else the mean. The names of the statistics are chosen for that.
        run.keep(statistics.as_metrics(time.perf_counter() - started))
        if trainer_batch is not None and run.records_this_step:
            rewards = token_level_rewards.sum(-1)
            run.record(Batch(log_probs, advantages, response_mask, group, rewards, trainer_batch.read_sequences))
    return weighted, weighted


def _old_log_probs(
    argument: Float[Tensor, "rows time"] | None, batch: Any, trainer_batch: TrainerBatch | None
) -> Float[Tensor, "rows time"]:
    """The log-probs from the first of three places that has them."""
    if argument is not None:
        return argument
    if batch is not None and "old_log_probs" in batch:
        of_batch: Tensor = batch["old_log_probs"]
        return of_batch
    if trainer_batch is not None and trainer_batch.old_log_probs is not None:
        return trainer_batch.old_log_probs
    raise HostError(
        f"{NAME} needs old_log_probs, but this trainer does not pass them",
        fix=f"start verl.trainer.main_ppo of verl {TESTED[0]} to {TESTED[1]}",
    )


def _grpo_advantages(
    token_level_rewards: Float[Tensor, "rows time"], index: np.ndarray, config: AlgorithmConfig | None
) -> Float[Tensor, " rows"]:
    """The GRPO advantage of every response, by verl's function, bit for bit that of ``adv_estimator=grpo``.

    GRPO gives each response one number. So verl's function gets one column, the total reward of each response, and
    returns one column of advantages, without (rows, time) tensors.
    """
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    rewards = token_level_rewards.sum(-1, keepdim=True)
    everywhere = torch.ones_like(rewards)  # the mask is applied with the weights
    advantages: Tensor
    advantages, _ = compute_grpo_outcome_advantage(
        rewards, everywhere, index, norm_adv_by_std_in_grpo=_normalises(config)
    )
    return advantages[:, 0]


def _grpo_advantages_of_v1(
    token_level_rewards: Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    index: np.ndarray,
    config: AlgorithmConfig | None,
    keys: Sequence[str],
) -> Float[Tensor, " rows"]:
    """The same by the function of verl's V1 trainer, which scores the last of several outputs of a session."""
    from verl.protocol import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    columns = {
        "token_level_rewards": token_level_rewards.sum(-1, keepdim=True),
        "response_mask": (response_mask != 0).any(-1, keepdim=True).long(),
    }
    data = compute_advantage_for_multi_trajectories(
        DataProto.from_dict(tensors=columns, non_tensors={"uid": index}),
        batch_keys=list(keys),
        adv_estimator=AdvantageEstimator.GRPO,
        norm_adv_by_std_in_grpo=_normalises(config),
        config=config,
    )
    advantages: Tensor = data.batch["advantages"]
    return advantages[:, 0]


def _grpo_advantages_of_sessions(
    token_level_rewards: Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    index: np.ndarray,
    config: AlgorithmConfig | None,
    final_index: Int[Tensor, " rows"],
) -> Float[Tensor, " rows"]:
    """The same, where verl says which row is the final output of each row's session."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    final_rows = final_index.tolist()
    scored_rows = list(dict.fromkeys(final_rows))  # in verl's order
    advantages: Tensor
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards[scored_rows].sum(-1, keepdim=True),
        (response_mask[scored_rows] != 0).any(-1, keepdim=True).long(),
        index[scored_rows],
        norm_adv_by_std_in_grpo=_normalises(config),
    )
    place_of_row = {row: place for place, row in enumerate(scored_rows)}
    return advantages[[place_of_row[row] for row in final_rows], 0]


def _normalises(config: AlgorithmConfig | None) -> object:
    """Whether GRPO divides by the standard deviation of a group's rewards."""
    return True if config is None else config.get("norm_adv_by_std_in_grpo", True)


def _group_numbers(index: np.ndarray) -> Int[Tensor, " rows"]:
    """A number for each row's uid, in the order in which the uids occur."""
    number_of_uid: dict[Hashable, int] = {}
    return torch.tensor([number_of_uid.setdefault(uid, len(number_of_uid)) for uid in index], dtype=torch.long)
