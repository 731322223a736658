"""SkyRL: its trainer's training step and its policy worker, under FSDP2; its estimators and our weightings.

The model is a table of log-probs in float64, since SkyRL's own is bfloat16.
"""

import functools
import os
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from batches import PROMPT, RESPONSES, ROWS, WIDTH, Batch, Case, make_batch, order_of
from skyrl.backends.skyrl_train.distributed.fsdp_strategy import FSDPStrategy
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase
from skyrl.train.trainer import RayPPOTrainer
from skyrl_trainers import settings, trainer_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import pad

from cw_plugin.hosts.skyrl.trainer import CWGRPOTrainer
from cw_plugin.registry import BUILT_IN, load

OPTIONS = {
    **{f"loss: {loss}": {"policy_loss_type": str(loss)} for loss in ppo_utils.PolicyLossType},
    "loss: regular, KL penalty": {"use_kl_loss": "true"},
    "loss: regular, entropy bonus": {"use_entropy_loss": "true"},
    **{
        f"aggregation: {name}": {"loss_reduction": name}
        for name in ("token_mean_legacy", "sequence_mean", "prompt_mean")
    },
    "aggregation: seq_mean_token_sum_norm": {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": "64"},
}


class Table(torch.nn.Module):
    """A policy whose parameters are the log-probs; a sequence ends with the number of its row."""

    def __init__(self, old: torch.Tensor) -> None:
        super().__init__()
        self.log_probs = torch.nn.Parameter(old)

    def forward(self, sequences: torch.Tensor, num_actions: int, **_: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        log_probs = pad(self.log_probs[sequences[:, -1]], (num_actions - WIDTH, 0))
        return log_probs, {"entropy": pad(log_probs**2, (sequences.shape[1] - 1 - num_actions, 1))}


def at_end(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Responses that end at the last column, as SkyRL's do."""
    return torch.stack([row.roll(WIDTH - int(length)) for row, length in zip(values, lengths, strict=True)])


def data_of(batch: Batch, case: Case) -> TrainingInputBatch:
    def wide(values: torch.Tensor) -> torch.Tensor:
        return pad(at_end(values, batch.lengths), (case.left, 0))

    mask, old, rewards = wide(batch.mask), wide(batch.old + batch.drift), torch.zeros(ROWS, WIDTH + case.left).double()
    rewards[:, -1] = batch.rewards
    data = TrainingInputBatch({
        "sequences": torch.cat([pad(batch.ids[:, :-1], (case.left, 0)), batch.row[:, None]], 1),
        "attention_mask": torch.cat([torch.ones(ROWS, PROMPT), mask], 1).long(), "loss_mask": mask.double(),
        "response_mask": mask.long(), "action_log_probs": old, "rollout_logprobs": old, "base_action_log_probs": old,
        "rewards": rewards, "values": wide(batch.entropies), "advantages": batch.advantages[:, None] * mask,
    })  # fmt: skip
    groups = [(start, start + RESPONSES) for start in range(0, ROWS, RESPONSES)]
    data.metadata = {"uids": [str(group) for group in batch.group.tolist()], "response_length": WIDTH + case.left}
    data.metadata |= {"policy_mini_batch_boundaries": [(0, ROWS)], "policy_prompt_boundaries": groups}
    return data


@functools.cache
def mesh() -> Any:
    dist.init_process_group()
    return init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "sp"))


class InThisProcess:
    """SkyRL's dispatch to its workers, of which this process has one."""

    def __init__(self, worker: PolicyWorkerBase) -> None:
        self.worker = worker

    def stage_data(self, _: str, data: TrainingInputBatch, boundaries: list[tuple[int, int]]) -> list[Any]:
        return [data[start:end].chunk((end - start) // mesh().size())[dist.get_rank()] for start, end in boundaries]

    def forward_backward_from_staged(self, _: str, data: TrainingInputBatch) -> Any:
        return self.worker.forward_backward(data)

    def optim_step(self, _: str) -> None:
        """The gradient is all that is asked for."""


def gradient(options: dict[str, str], case: Case, seed: int) -> torch.Tensor | None:
    """Of the log-probs, after FSDP2 has averaged it."""
    if case.right:
        return None  # SkyRL pads on the left alone
    given = {f"trainer.algorithm.{name}": value for name, value in options.items()}
    given["trainer.micro_train_batch_size_per_gpu"] = ROWS // mesh().size() // case.micro
    given |= {"trainer.max_tokens_per_microbatch": 2 * (PROMPT + WIDTH)} if case.dynamic else {}
    trainer = trainer_of(RayPPOTrainer, settings(Path(tempfile.gettempdir()), **given))
    whole = make_batch(seed)
    table = fully_shard(Table(at_end(whole.old, whole.lengths)), mesh=mesh()["dp"])
    worker = object.__new__(PolicyWorkerBase)  # whose constructor is that of a Ray actor
    worker.cfg, worker.model, worker.optimizer, worker.device_mesh = trainer.cfg.trainer, table, None, mesh()
    worker.mesh_rank, worker.scheduler = (
        SimpleNamespace(dp_size=mesh().size()),
        SimpleNamespace(get_last_lr=lambda: [0]),
    )
    worker.policy_loss_fn = ppo_utils.PolicyLossRegistry.get(worker.cfg.algorithm.policy_loss_type)
    worker.strategy, trainer.dispatch = object.__new__(FSDPStrategy), InThisProcess(worker)
    rows = order_of(case, seed, whole_groups=True)
    trainer._execute_training_step("policy", data_of(make_batch(seed, rows), case))
    return table.log_probs.grad.full_tensor()


@functools.cache
def maker(weights: str) -> Any:
    cfg = settings(Path(tempfile.mkdtemp()), **{"generator.n_samples_per_prompt": RESPONSES})
    with patch.dict(os.environ, CW_GRPO_WEIGHTS=weights, CW_GRPO_RECORD_EVERY="0"):
        return trainer_of(CWGRPOTrainer if weights else RayPPOTrainer, cfg)


def advantages(estimator: str, weights: str, case: Case, seed: int) -> torch.Tensor | None:
    """In the trainer's process, which has the whole batch, and so sees no cut."""
    if case.right or case.ranks > 1 or case.micro > 1 or case.dynamic:
        return None
    batch, made = make_batch(seed, order_of(case, seed)), maker(weights)
    made.cfg.trainer.algorithm.advantage_estimator = estimator
    data = data_of(batch, case)
    data.metadata["avg_response_length"] = float(batch.lengths.double().mean())
    found = made.compute_advantages_and_returns(data)["advantages"][:, case.left :]
    return batch.in_order(torch.stack([row.roll(int(n)) for row, n in zip(found, batch.lengths, strict=True)]))


def rows(own: Any) -> dict[str, Any]:
    """``own``: a policy loss with the signature of SkyRL's registry."""
    found = {}
    if own:
        ppo_utils.PolicyLossRegistry.register("own", own)
        found["loss: own"] = partial(gradient, {"policy_loss_type": "own"})
    found |= {name: partial(gradient, options) for name, options in OPTIONS.items()}
    found |= {f"estimator: {name}": partial(advantages, str(name), "") for name in ppo_utils.AdvantageEstimator}
    served = [name for name in BUILT_IN if not load(name).needs_entropies]  # which SkyRL does not have
    return found | {f"weights: {name}": partial(advantages, "grpo", name) for name in served}
