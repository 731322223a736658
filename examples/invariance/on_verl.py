"""verl: losses and aggregations through its FSDP2 engine, estimators and our weightings through both trainers."""

import functools
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from batches import PROMPT, ROWS, SMALL, WIDTH, Case, make_batch, order_of, rows_of
from engine_step import make_engine
from engines import make_model
from torch.nn.functional import pad
from trainers import LEGACY, advantages, composed, legacy_trainer, trained_on, v1_trainer
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

from cw_plugin.registry import BUILT_IN

AGGREGATIONS = ("token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
NEEDS: dict[str, Any] = {"dro": {"dro_beta": 0.1}}  # what a loss needs of the configuration
NEEDS["bypass_mode"] = {"rollout_correction": {"loss_type": "reinforce", "rollout_is": "token"}}


def tensors_of(batch: Any, case: Case) -> dict[str, torch.Tensor]:
    """As verl's rollout returns them: prompts padded on the left, responses on the right."""
    mask = pad(batch.mask.long(), (0, case.right))
    prompts, responses = batch.ids.split((PROMPT, WIDTH), 1)
    prompts, responses = pad(prompts, (case.left, 0)), pad(responses, (0, case.right))
    attended = torch.cat([pad(torch.ones(len(mask), PROMPT, dtype=torch.long), (case.left, 0)), mask], 1)
    positions, ids = (attended.cumsum(1) - 1).clamp(min=0), torch.cat([prompts, responses], 1)
    return {"prompts": prompts, "responses": responses, "response_mask": mask, "attention_mask": attended,
            "input_ids": ids, "position_ids": positions}  # fmt: skip


@functools.cache
def engine() -> Any:
    dist.init_process_group("gloo")
    PrecisionType.to_dtype = staticmethod(lambda _: torch.float64)  # verl itself offers no more than float32
    with tempfile.TemporaryDirectory() as folder:
        made = make_engine("fsdp2", 1, 1, 0.0, str(make_model(Path(folder) / "model", **SMALL)), 1, False)
    made._autocast_dtype = torch.float32  # which means no autocast
    return made


def gradient(loss: str, aggregation: str, case: Case, seed: int) -> torch.Tensor:
    """Of the model's parameters, as verl's optimizer gets it."""
    batch, found = make_batch(seed, rows_of(case, seed)), []
    tensors = tensors_of(batch, case)

    def tensordict(micro: int, dynamic: bool, **more: torch.Tensor) -> Any:
        info = {"temperature": 1.0, "global_token_num": tensors["attention_mask"].sum(1).tolist()}
        data = DataProto.from_single_dict({**tensors, **more}, meta_info=info).to_tensordict()
        data = left_right_2_no_padding(data)
        sizes = {"micro_batch_size_per_gpu": len(batch.row) // micro, "max_token_len_per_gpu": 2 * (PROMPT + WIDTH)}
        tu.assign_non_tensor(data, global_batch_size=ROWS, calculate_entropy=False, use_dynamic_bsz=dynamic, **sizes)
        return data

    with engine().eval_mode():
        data = tensordict(1, False)
        log_probs = no_padding_2_padding(engine().infer_batch(data)["model_output"]["log_probs"], data)
    log_probs = pad(log_probs, (0, WIDTH + case.right - log_probs.shape[1]))
    more = {"old_log_probs": batch.drifted(log_probs, tensors["response_mask"])}
    more["advantages"] = batch.advantages[:, None] * tensors["response_mask"]
    of_loss = PolicyLossConfig(loss_mode=loss, **NEEDS.get(loss, {}))
    config = ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=aggregation,
                         policy_loss=of_loss)  # fmt: skip

    def keep_gradient() -> float:
        found.extend(p.grad.full_tensor().flatten().clone() for p in engine().module.parameters())
        return 0.0

    engine().optimizer_step = keep_gradient
    order_of(case, seed)  # seeds the generator once more
    with engine().train_mode():
        data = tensordict(case.micro, case.dynamic, **more)
        engine().train_batch(data, loss_function=partial(ppo_loss, config=config))
    return torch.cat(found)


@functools.cache
def trainer(weights: str, is_v1: bool) -> Any:
    options = (f"+algorithm.cw_grpo.weights={weights}", "+algorithm.cw_grpo.record_every=0")
    given = ("algorithm.adv_estimator=cw_grpo", *options, f"trainer.default_local_dir={tempfile.mkdtemp()}")
    return v1_trainer(*given) if is_v1 else legacy_trainer(LEGACY, *given)


def estimate(estimator: str, weights: str, is_v1: bool, case: Case, seed: int) -> torch.Tensor | None:
    """Advantages, in the trainer's process, which has the whole batch, and so sees no cut."""
    if case.ranks > 1 or case.micro > 1 or case.dynamic:
        return None
    batch = make_batch(seed, order_of(case, seed))
    tensors, wide = tensors_of(batch, case), (0, case.right)
    at_end = torch.zeros(tensors["response_mask"].shape, dtype=torch.float64)
    at_end[torch.arange(ROWS), batch.lengths - 1] = batch.rewards
    tensors |= dict.fromkeys(("token_level_rewards", "token_level_scores", "values"), at_end)
    tensors |= dict.fromkeys(("entropy", "sum_pi_squared"), pad(batch.entropies, wide))
    tensors |= {"old_log_probs": pad(batch.old, wide)}
    tensors |= {"reward_baselines": batch.entropies[:, 0]} if estimator == "remax" else {}
    uids = [f"{group:032d}" for group in batch.group.tolist()]
    objects = {"uid": uids, "acc": batch.rewards.tolist(), "format": batch.advantages.tolist()}
    data = DataProto.from_dict(tensors, {name: np.array(rows, dtype=object) for name, rows in objects.items()})
    keys = [f"{uid}_{row}_0" for uid, row in zip(uids, batch.row.tolist(), strict=True)] if is_v1 else None
    if weights:
        return batch.in_order(trained_on(trainer(weights, is_v1), data, keys)[0])
    config = composed(f"algorithm.adv_estimator={estimator}", "+algorithm.gdpo_reward_keys=[acc,format]").algorithm
    return batch.in_order(advantages(estimator, data, keys, config))


def rows(own: Any) -> dict[str, Any]:
    """``own``: a policy loss with the signature of verl's registry."""
    if own:
        core_algos.register_policy_loss("own")(own)
    found = {f"loss: {loss}": partial(gradient, loss, "token-mean") for loss in core_algos.POLICY_LOSS_REGISTRY}
    found |= {f"aggregation: {name}": partial(gradient, "vanilla", name) for name in AGGREGATIONS}
    estimators = [name for name in core_algos.ADV_ESTIMATOR_REGISTRY if name != "cw_grpo"]
    for of_trainer, is_v1 in (("V1", True), ("legacy", False)):
        found |= {f"estimator, {of_trainer}: {name}": partial(estimate, name, "", is_v1) for name in estimators}
        found |= {f"weights, {of_trainer}: {name}": partial(estimate, "", name, is_v1) for name in BUILT_IN}
    return found
