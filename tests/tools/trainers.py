"""verl's own trainers, constructed as its task runners do, but without workers; and batches of a step and of a loss."""

import copy
import functools
import importlib
import importlib.util
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import verl
import yaml
from hydra import compose, initialize_config_dir, initialize_config_module
from omegaconf import OmegaConf
from random_batches import random_entropies
from reference_weightings import reference_weighted
from verl import DataProto
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.utils import Role
from verl.utils import config as verl_config
from verl.workers.config import ActorConfig, PolicyLossConfig

HAS_V1 = importlib.util.find_spec("verl.trainer.ppo.v1") is not None  # verl has it from 0.9 on
_ASYNCHRONOUS = "verl.experimental.fully_async_policy.fully_async_main"  # not in the wheel of 0.7.1
HAS_SEPARATE = importlib.util.find_spec(_ASYNCHRONOUS) is not None
NEEDS_SEPARATE = pytest.mark.skipif(not HAS_SEPARATE, reason="this version of verl lacks them")
NEEDS_V1 = pytest.mark.skipif(not HAS_V1, reason="this version of verl has no V1")
CW_GRPO, GRPO = "algorithm.adv_estimator=cw_grpo", "algorithm.adv_estimator=grpo"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo"
LEGACY = "trainer.use_v1=False"
OPTION = "+algorithm.cw_grpo."
VALID = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "data.train_batch_size=8",
    "data.val_batch_size=1",
    "data.dataloader_num_workers=0",
    "trainer.device=cpu",
)


class Tokenizer:
    """Says a token by its number."""

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))

    def batch_decode(self, several: list[list[int]]) -> list[str]:
        return [self.decode(ids) for ids in several]


@functools.cache
def _defaults() -> Any:
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [*VALID])


@functools.cache
def _defaults_of(program: str) -> Any:
    """Of a program of verl.experimental."""
    names = {"fully_async_policy": "fully_async_ppo_trainer", "one_step_off_policy": "one_step_off_ppo_trainer"}
    own = ["actor_rollout_ref.hybrid_engine=False", "trainer.logger=console"]
    searched = "hydra.searchpath=[pkg://verl.trainer.config]"  # one_step_off_policy's is relative to a clone of verl
    folder = Path(verl.__file__).parent / "experimental" / program / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose(names[program], [searched, *VALID, *own])


def composed(*overrides: str, program: str = "") -> Any:
    """verl's configuration, as main_ppo or another program composes it; hydra, which takes a second for it, reads
    verl's files once. A verl without V1 has no name for the legacy trainer."""
    config = copy.deepcopy(_defaults_of(program) if program else _defaults())
    override(config, *(each for each in overrides if each != LEGACY or HAS_V1))
    return config


def override(config: Any, *overrides: str) -> None:
    for each in overrides:
        key, _, value = each.removeprefix("+").partition("=")
        OmegaConf.update(config, key, yaml.safe_load(value), force_add=each.startswith("+"))


def validate(*overrides: str) -> None:
    """verl's own validate_config, as main_ppo calls it."""
    verl_config.validate_config(config=composed(*overrides), use_reference_policy=False, use_critic=False)


def v1_trainer(*overrides: str) -> Any:
    """The trainer of ``trainer.use_v1=True`` before its workers start."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    config = composed("trainer.use_v1=True", *overrides)
    made = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
    made.global_steps, made.tokenizer = 1, Tokenizer()
    return made


class LegacyTrainer(ray_trainer.RayPPOTrainer):
    """verl's legacy trainer, whose ``fit`` is one step without workers: it calls what verl's own calls, by the names
    that stand in verl's module."""

    def _compute_old_log_prob(self, batch: DataProto) -> tuple[DataProto, float]:
        computed = {"old_log_probs": batch.batch["old_log_probs"], "entropys": batch.batch["entropy"]}
        return DataProto.from_dict(tensors=computed), 0.0

    def fit(self) -> None:
        algorithm = self.config.algorithm
        computed, _ = self._compute_old_log_prob(self.batch)
        computed.batch.pop("entropys")  # as verl's does
        self.batch = ray_trainer.compute_advantage(
            self.batch,
            adv_estimator=algorithm.adv_estimator,
            norm_adv_by_std_in_grpo=algorithm.get("norm_adv_by_std_in_grpo", True),
            config=algorithm,
        )
        self.metrics = ray_trainer.compute_data_metrics(batch=self.batch, use_critic=False)

    fit.__module__ = ray_trainer.__name__


def legacy_trainer(*overrides: str, trainer: type = LegacyTrainer, config: Any = None) -> Any:
    """The trainer of ``trainer.use_v1=False`` before its workers start; ``config`` is another than verl's own."""
    made = trainer(
        config=composed(LEGACY, *overrides) if config is None else config,
        tokenizer=Tokenizer(),
        role_worker_mapping={Role.ActorRollout: None, Role.ActorRolloutRef: None},
        resource_pool_manager=None,
        **_datasets(),
    )
    made.global_steps = 1
    return made


class _WithoutWorkers:
    """Stands in front of a trainer of an asynchronous program: its own step, from the old log-probs to the advantages.
    Its own method says whether these are those of the rollouts, here twice those that workers would compute."""

    def _compute_old_log_prob(self, batch: DataProto) -> tuple[DataProto, float]:
        computed = {"old_log_probs": batch.batch["rollout_log_probs"] / 2, "entropys": batch.batch["entropy"]}
        return DataProto.from_dict(tensors=computed), 0.0

    def fit(self) -> None:
        self.batch.batch["rollout_log_probs"] = 2 * self.batch.batch.pop("old_log_probs")
        self.reward_tensor = self.batch.batch.pop("token_level_rewards")
        self.reward_extra_infos_dict, self.metrics = {}, {}
        self.batch = self._fit_compute_advantage(self._fit_compute_log_prob(self.batch))


def separate_trainer(*overrides: str, program: str = "fully_async_policy") -> Any:
    """The trainer of an asynchronous program when it begins to make its workers. Old log-probs are computed, as they
    are without bypass_mode, unless an override says otherwise."""
    module, name = {
        "fully_async_policy": ("fully_async_trainer", "FullyAsyncTrainer"),
        "one_step_off_policy": ("ray_trainer", "OneStepOffRayTrainer"),
    }[program]
    found = getattr(importlib.import_module(f"verl.experimental.{program}.{module}"), name)
    trainer = found.__ray_metadata__.modified_class if hasattr(found, "__ray_metadata__") else found
    settings = {} if program == "fully_async_policy" else _datasets()
    computed = "algorithm.rollout_correction.bypass_mode=False"
    made = type(name, (_WithoutWorkers, trainer), {})(
        config=composed(computed, *overrides, program=program),
        tokenizer=Tokenizer(),
        role_worker_mapping={},
        resource_pool_manager=ray_trainer.ResourcePoolManager(resource_pool_spec={}, mapping={}),
        **settings,
    )
    with patch.object(ray_trainer.ResourcePoolManager, "_check_resource_available"):  # which asks Ray
        made._init_resource_pools()
    made.global_steps = 1
    return made


def one_step_off_trainer(*overrides: str) -> Any:
    """The same of one_step_off_policy."""
    return separate_trainer(*overrides, program="one_step_off_policy")


def _datasets() -> dict[str, Any]:
    return {"train_dataset": list(range(8)), "val_dataset": [0], "collate_fn": list}


def trainer_batch(seed: int = 0, outputs: int = 1) -> tuple[DataProto, list[str]]:
    """A step's batch as verl's V1 trainer holds it after balancing, and its keys: rows of a group scattered, one
    padding row. Prompts are "7 ROW", responses count from 100 * row."""
    prompts, sessions, width = 6, 4, 30
    g = torch.Generator().manual_seed(seed)
    uids = [str(uuid.UUID(int=torch.randint(2**62, (1,), generator=g).item())) for _ in range(prompts)]
    keys = [f"{uid}_{s}_{o}" for uid in uids for s in range(sessions) for o in range(outputs)]
    keys = [keys[i] for i in torch.randperm(len(keys), generator=g)]
    keys.insert(3, f"pad{'0' * 29}_0_0")
    rows = len(keys)
    lengths = torch.randint(2, width + 1, (rows,), generator=g)
    mask = (torch.arange(width) < lengths[:, None]).long()
    mask[5, 1] = 0  # a tool's output within a response
    mask[3] = 0
    rewards = torch.zeros(rows, width)
    rewards[torch.arange(rows), lengths - 1] = torch.randint(0, 3, (rows,), generator=g).float()
    tensors = {
        "prompts": torch.stack([torch.full((rows,), 7), torch.arange(rows)], 1),
        "responses": 100 * torch.arange(rows)[:, None] + torch.arange(width),
        "response_mask": mask,
        "token_level_rewards": rewards,
        "token_level_scores": rewards,
        "attention_mask": torch.cat([torch.ones(rows, 2, dtype=torch.long), mask], 1),
        "old_log_probs": -torch.rand(rows, width, generator=g).exp().sub(1).pow(3) * mask,
        "entropy": random_entropies(seed, mask.shape, scale=0.25) * mask,
    }
    of_rows = np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": of_rows}), keys


def copied(data: DataProto) -> DataProto:
    return DataProto.from_dict(tensors=dict(data.batch.clone()), non_tensors=dict(data.non_tensor_batch))


def advantages(estimator: str, data: DataProto, keys: list[str] | None, config: Any) -> torch.Tensor:
    """By verl's own function, V1's or (without keys) the legacy one."""
    compute, of_v1 = ray_trainer.compute_advantage, {}
    if keys is not None:
        from verl.trainer.ppo.v1 import trainer_base

        compute, of_v1 = trainer_base.compute_advantage_for_multi_trajectories, {"batch_keys": keys}
    norm = config.get("norm_adv_by_std_in_grpo", True)
    result = compute(copied(data), **of_v1, adv_estimator=estimator, norm_adv_by_std_in_grpo=norm, config=config)
    return result.batch["advantages"]


def trained_on(trainer: Any, data: DataProto, keys: list[str] | None) -> tuple[torch.Tensor, dict[str, Any]]:
    """The advantages that a trainer's update would get of a step's batch, and the metrics that it would log."""
    if keys is None:
        trainer.batch = copied(data)
        trainer.fit()
        batch, metrics = trainer.batch.batch, trainer.metrics
    else:
        batch, metrics = _in_v1(trainer, data, keys)
    assert torch.equal(batch["advantages"], batch["returns"])
    return batch["advantages"], metrics


def _in_v1(trainer: Any, data: DataProto, keys: list[str]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """By PPOTrainer._compute_advantage, with a transfer queue in memory."""
    import transfer_queue
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    def nested(rows: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)

    tensors = {name: nested(rows) for name, rows in data.batch.items()}
    tensors["rm_scores"] = tensors.pop("token_level_rewards")
    stored = dict(tensordict_utils.get_tensordict({**tensors, "uid": data.non_tensor_batch["uid"].tolist()}).items())

    def get(keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        assert partition_id == batch.partition_id
        rows = [of_batch.index(key) for key in keys]
        found = TensorDict({name: stored[name] for name in select_fields if name in stored}, batch_size=len(of_batch))
        if rows == list(range(len(of_batch))):
            return found
        return {name: nested(found[name].to_padded_tensor(0)[rows]) for name in select_fields}

    def put(keys: list[str], partition_id: str, fields: Any) -> Any:
        stored.update(fields.items())
        return batch

    of_batch = list(keys)
    batch = transfer_queue.KVBatchMeta(keys=of_batch, tags=[{} for _ in keys], partition_id="train")
    metrics: dict[str, Any] = {}
    with patch.object(transfer_queue, "kv_batch_get", get), patch.object(transfer_queue, "kv_batch_put", put):
        trainer._compute_advantage(batch, metrics=metrics)
    width = data.batch["response_mask"].shape
    of_update = {name: stored[name].to_padded_tensor(0.0, output_size=width) for name in ("advantages", "returns")}
    return of_update, metrics


def weighted(
    data: DataProto, plain: torch.Tensor, scope: str = "group", weights: str = "gaussian", settings: Any = None
) -> torch.Tensor:
    """The reference's weights times GRPO's advantages."""
    uids = data.non_tensor_batch["uid"] if scope == "group" else [0] * len(plain)
    of_tokens = data.batch["old_log_probs"], plain, data.batch["response_mask"]
    return reference_weighted(weights, *of_tokens, uids, data.batch["entropy"], **(settings or {}))


def loss_arguments(seed=0, rows=6, width=20):
    g = torch.Generator().manual_seed(seed)
    log_prob = (-torch.rand(rows, width, generator=g) * 3).requires_grad_()
    return {
        "old_log_prob": log_prob.detach() + 0.3 * torch.randn(rows, width, generator=g),
        "log_prob": log_prob,
        "advantages": 2 * torch.randn(rows, width, generator=g),
        "response_mask": torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=g),
    }


def actor_config(loss_agg_mode="token-mean"):
    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=loss_agg_mode, clip_ratio_c=1.5,
        policy_loss=PolicyLossConfig(loss_mode="cw_grpo"),
    )  # fmt: skip
    config.global_batch_info.update(dp_size=2, batch_num_tokens=100, global_batch_size=12, loss_scale_factor=7)
    return config
