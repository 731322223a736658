"""``algorithm.adv_estimator=cw_grpo``: verl's GRPO advantages times the weights of the paper."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from cw_plugin.errors import HostError, NonFiniteError
from cw_plugin.records.write import Batch
from cw_plugin.verl_integration import NAME, TESTED, current_run
from cw_plugin.verl_integration.accepted_settings import read_options
from cw_plugin.weights import CovarianceStatistics, reweight


@dataclass(frozen=True)
class TrainerBatch:
    """What verl's trainer knows while it computes advantages, but does not pass to an estimator (see hooks.py)."""

    old_log_probs: Float[Tensor, "rows time"] | None
    keys: Sequence[str] | None  # "{uid}_{session}_{output}" for each row; None under RayPPOTrainer
    sequences: Callable[[Sequence[int]], Iterable[tuple[Tensor, Tensor]]]  # token ids of prompt and response of rows


batch_of_trainer: ContextVar[TrainerBatch | None] = ContextVar("cw_grpo_batch", default=None)


def compute_cw_grpo_advantage(
    token_level_rewards: Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    index: np.ndarray,
    config: Any = None,
    old_log_probs: Float[Tensor, "rows time"] | None = None,
    batch: Any = None,
    final_index: Int[Tensor, " rows"] | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "rows time"]]:
    """Covariance-weighted GRPO advantages, an estimator of verl's registry.

    Log-probs come from ``old_log_probs``, else ``batch["old_log_probs"]``, else from the hook. So if verl passes them
    itself, those are used.

    Args:
        token_level_rewards: rewards; each row is summed, as in GRPO.
        response_mask: nonzero for the tokens that are trained on.
        index: the uid of each row's prompt, (rows,) of any hashable.
        config: verl's ``algorithm`` configuration.
        old_log_probs: log-probs of the policy before the update, in nats.
        batch: a mapping that holds ``old_log_probs``.
        final_index: for each row, the row of the final output of its session, which alone is scored; passed by a verl
            whose estimators declare their fields.

    Returns:
        advantages and returns, the same float32 tensor as in verl's outcome estimators, 0 off the mask.

    Raises:
        HostError: no log-probs reached the estimator.
        NonFiniteError: NaN or infinity at a valid token.
        OptionsError: unknown option.
    """
    started = time.perf_counter()
    options = read_options(config)
    trainer_batch, this_run = batch_of_trainer.get(), current_run.current()
    if old_log_probs is None and batch is not None and "old_log_probs" in batch:
        old_log_probs = batch["old_log_probs"]
    if old_log_probs is None and trainer_batch is not None:
        old_log_probs = trainer_batch.old_log_probs
    if old_log_probs is None:
        raise HostError(
            f"{NAME} needs old_log_probs, but this trainer does not pass them; start verl.trainer.main_ppo "
            f"of verl {TESTED[0]} to {TESTED[1]}"
        )
    keys = trainer_batch.keys if trainer_batch is not None else None
    if final_index is None:
        advantages = _grpo_advantages(token_level_rewards, response_mask, index, config, keys)
    else:
        advantages = _grpo_advantages_of_sessions(token_level_rewards, response_mask, index, config, final_index)
    group = _group_numbers(index)
    scope = group if options.scope == "group" else None
    try:
        weighted, statistics = reweight(old_log_probs, advantages, response_mask, scope, options.kernel)
    except NonFiniteError as error:
        prompts = ", ".join(str(index[row]) for row in error.rows[:20])
        raise NonFiniteError(error.what, error.rows, f" Their uids: {prompts}.") from error
    if this_run:
        this_run.note(as_metrics(statistics, time.perf_counter() - started))
    if this_run and trainer_batch and this_run.records_this_step:
        rewards = token_level_rewards.sum(-1)
        this_run.record(Batch(old_log_probs, advantages, response_mask, group, rewards, trainer_batch.sequences))
    return weighted, weighted


def _grpo_advantages(
    token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, config: Any, batch_keys: Sequence[str] | None
) -> Float[Tensor, " rows"]:
    """verl's own GRPO advantage of every response, bit for bit that of ``adv_estimator=grpo``.

    GRPO gives each response one number. So verl's function gets one column, the total reward of each response, and
    returns one column of advantages, without (rows, time) tensors.
    """
    from verl.trainer.ppo.core_algos import AdvantageEstimator, compute_grpo_outcome_advantage

    reward = token_level_rewards.sum(-1, keepdim=True)
    norm_by_std = config.get("norm_adv_by_std_in_grpo", True) if config is not None else True
    if batch_keys is None:
        everywhere = torch.ones_like(reward)  # the mask is applied with the weights
        return compute_grpo_outcome_advantage(reward, everywhere, index, norm_adv_by_std_in_grpo=norm_by_std)[0][:, 0]

    # With the trainer's keys, verl's V1 rule for sessions of several outputs applies: the last one is scored.
    has_tokens = (response_mask != 0).any(-1, keepdim=True).long()
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    data = DataProto.from_dict(
        tensors={"token_level_rewards": reward, "response_mask": has_tokens}, non_tensors={"uid": index}
    )
    data = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=list(batch_keys),
        adv_estimator=AdvantageEstimator.GRPO,
        norm_adv_by_std_in_grpo=norm_by_std,
        config=config,
    )
    return data.batch["advantages"][:, 0]


def _grpo_advantages_of_sessions(
    token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, config: Any, final_index: Tensor
) -> Float[Tensor, " rows"]:
    """The same, where verl says which row is the final output of each row's session."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    final_rows = final_index.tolist()
    scored = list(dict.fromkeys(final_rows))  # in verl's order
    number = {row: i for i, row in enumerate(scored)}
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards[scored].sum(-1, keepdim=True),
        (response_mask[scored] != 0).any(-1, keepdim=True).long(),
        index[scored],
        norm_adv_by_std_in_grpo=config.get("norm_adv_by_std_in_grpo", True) if config is not None else True,
    )
    return advantages[[number[row] for row in final_rows], 0]


def _group_numbers(index: np.ndarray) -> Int[Tensor, " rows"]:
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in index], dtype=torch.long)


def as_metrics(statistics: CovarianceStatistics, seconds: float) -> dict[str, float]:
    """Metrics as verl logs them.

    verl merges several values of one name by what the name contains: with "max" the largest, with "min" (as in
    "timing") the smallest, else the mean. The names are chosen for that.
    """
    metrics = {f"{NAME}/{name}": value for name, value in vars(statistics).items()}
    return {**metrics, f"{NAME}/seconds": seconds}
