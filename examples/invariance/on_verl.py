"""verl: losses and aggregations through its FSDP2 engine, estimators and our weightings through both trainers."""

import math
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from batches import PROMPT, ROWS, SMALL, TOKENS, WIDTH, Batch, Case, NotOfferedError, drifted, in_order, share
from engine_step import log_probs_of, make_engine, tensordict
from engines import make_model
from torch.nn.functional import pad
from trainers import LEGACY, advantages, composed, legacy_trainer, trained_on, v1_trainer
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from cw_plugin.registry import BUILT_IN

AGGREGATIONS = ("token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
NEEDS: dict[str, Any] = {  # what a loss needs of the configuration
    "dro": {"dro_beta": 0.1},
    "bypass_mode": {"rollout_correction": {"loss_type": "reinforce", "rollout_is": "token"}},
}

dist.init_process_group("gloo")
PrecisionType.to_dtype = staticmethod(lambda _: torch.float64)  # verl itself offers no more than float32
with tempfile.TemporaryDirectory() as folder:
    ENGINE = make_engine("fsdp2", 1, 1, 0.0, str(make_model(Path(folder) / "model", **SMALL)), 1, False)
ENGINE._autocast_dtype = torch.float32  # which means no autocast
ENGINE.optimizer_config.clip_grad = math.inf


def tensors_of(batch: Batch, case: Case) -> dict[str, torch.Tensor]:
    """As verl's rollout returns them: prompts padded on the left, responses on the right."""
    mask = pad(batch.mask.long(), (0, case.right))
    prompts, responses = batch.ids.split((PROMPT, WIDTH), 1)
    prompts, responses = pad(prompts, (case.left, 0)), pad(responses, (0, case.right))
    attended = torch.cat([pad(torch.ones(len(mask), PROMPT, dtype=torch.long), (case.left, 0)), mask], 1)
    positions, ids = (attended.cumsum(1) - 1).clamp(min=0), torch.cat([prompts, responses], 1)
    return {"prompts": prompts, "responses": responses, "response_mask": mask, "attention_mask": attended,
            "input_ids": ids, "position_ids": positions}  # fmt: skip


def update(case: Case, seed: int, loss: str = "vanilla", aggregation: str = "token-mean") -> None:
    batch = share(case, seed)
    tensors, mask = tensors_of(batch, case), pad(batch.mask, (0, case.right))
    sizes = {"global_batch_size": ROWS, "micro_batch_size_per_gpu": len(mask) // case.micro,
             "use_dynamic_bsz": case.dynamic, "max_token_len_per_gpu": TOKENS}  # fmt: skip
    log_probs = log_probs_of(ENGINE, tensordict(tensors, **sizes))
    tensors |= {"old_log_probs": drifted(log_probs, batch.drift, mask), "advantages": batch.advantages[:, None] * mask}
    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=aggregation,
        policy_loss=PolicyLossConfig(loss_mode=loss, **NEEDS.get(loss, {})),
    )  # fmt: skip
    with ENGINE.train_mode():
        ENGINE.train_batch(tensordict(tensors, **sizes), loss_function=partial(ppo_loss, config=config))


@cache
def trainer(weights: str, is_v1: bool) -> Any:
    options = (f"+algorithm.cw_grpo.weights={weights}", "+algorithm.cw_grpo.record_every=0")
    given = ("algorithm.adv_estimator=cw_grpo", *options, f"trainer.default_local_dir={tempfile.mkdtemp()}")
    return v1_trainer(*given) if is_v1 else legacy_trainer(LEGACY, *given)


def estimate(case: Case, seed: int, is_v1: bool, estimator: str = "", weights: str = "") -> torch.Tensor:
    """Advantages, in the trainer's process, which has the whole batch, and so sees no cut."""
    if case.ranks > 1 or case.micro > 1 or case.dynamic:
        raise NotOfferedError
    batch = share(case, seed)
    tensors = tensors_of(batch, case)
    at_end = torch.zeros(tensors["response_mask"].shape, dtype=torch.float64)
    at_end[torch.arange(ROWS), batch.lengths - 1] = batch.rewards
    tensors |= dict.fromkeys(("token_level_rewards", "token_level_scores", "values"), at_end)
    tensors |= dict.fromkeys(("entropy", "sum_pi_squared"), pad(batch.entropies, (0, case.right)))
    tensors |= {"old_log_probs": pad(batch.old, (0, case.right))}
    tensors |= {"reward_baselines": batch.entropies[:, 0]} if estimator == "remax" else {}
    uids = [f"{group:032d}" for group in batch.group.tolist()]
    objects = {"uid": uids, "acc": batch.rewards.tolist(), "format": batch.advantages.tolist()}
    data = DataProto.from_dict(tensors, {name: np.array(rows, dtype=object) for name, rows in objects.items()})
    keys = [f"{uid}_{row}_0" for uid, row in zip(uids, batch.row.tolist(), strict=True)] if is_v1 else None
    if weights:
        return in_order(batch, trained_on(trainer(weights, is_v1), data, keys)[0])
    config = composed(f"algorithm.adv_estimator={estimator}", "+algorithm.gdpo_reward_keys=[acc,format]").algorithm
    return in_order(batch, advantages(estimator, data, keys, config))


def rows(own: Any) -> dict[str, Any]:
    """``own``: a policy loss with the signature of verl's registry."""
    if own:
        core_algos.register_policy_loss("own")(own)
    found = {f"loss: {loss}": partial(update, loss=loss) for loss in core_algos.POLICY_LOSS_REGISTRY}
    found |= {f"aggregation: {name}": partial(update, aggregation=name) for name in AGGREGATIONS}
    estimators = [name for name in core_algos.ADV_ESTIMATOR_REGISTRY if name != "cw_grpo"]
    for of, is_v1 in (("V1", True), ("legacy", False)):
        found |= {f"estimator, {of}: {name}": partial(estimate, is_v1=is_v1, estimator=name) for name in estimators}
        found |= {f"weights, {of}: {name}": partial(estimate, is_v1=is_v1, weights=name) for name in BUILT_IN}
    return found
