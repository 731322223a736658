"""SkyRL: its trainer's training step and its policy worker, under FSDP2; its estimators and our weightings.

The model is a table of log-probs in float64, since SkyRL's own is bfloat16.
"""

import os
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from batches import PROMPT, RESPONSES, ROWS, TOKENS, WIDTH, Batch, Case, NotOfferedError, in_order, make_batch, ordered
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

REDUCTIONS = ("token_mean_legacy", "sequence_mean", "prompt_mean")
OPTIONS = {
    **{f"loss: {loss}": {"policy_loss_type": str(loss)} for loss in ppo_utils.PolicyLossType},
    "loss: regular, KL penalty": {"use_kl_loss": "true"},
    "loss: regular, entropy bonus": {"use_entropy_loss": "true"},
    **{f"aggregation: {name}": {"loss_reduction": name} for name in REDUCTIONS},
    "aggregation: seq_mean_token_sum_norm": {"loss_reduction": "seq_mean_token_sum_norm", "max_seq_len": "64"},
}

dist.init_process_group()
RANK, RANKS = dist.get_rank(), dist.get_world_size()
MESH = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("dp", "sp"))


class Table(torch.nn.Embedding):
    """A policy whose parameters are the log-probs; a sequence begins with the number of its row."""

    def forward(self, sequences: torch.Tensor, num_actions: int, **_: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        log_probs = pad(super().forward(sequences[:, 0]), (num_actions - WIDTH, 0))
        return log_probs, {"entropy": pad(log_probs**2, (PROMPT - 1, 1))}


def at_end(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Responses that begin at the first column, shifted so that they end at the last one, as SkyRL's do."""
    return torch.stack([row.roll(WIDTH - int(length)) for row, length in zip(values, lengths, strict=True)])


def data_of(batch: Batch, case: Case) -> TrainingInputBatch:
    def wide(values: torch.Tensor) -> torch.Tensor:
        return pad(at_end(values, batch.lengths), (case.left, 0))

    mask, old = wide(batch.mask), wide(batch.old + batch.drift)
    data = TrainingInputBatch({
        "sequences": torch.cat([batch.row[:, None], pad(batch.ids[:, 1:], (case.left, 0))], 1),
        "attention_mask": pad(mask.long(), (PROMPT, 0), value=1), "loss_mask": mask.double(),
        "response_mask": mask.long(), "action_log_probs": old, "rollout_logprobs": old, "base_action_log_probs": old,
        "rewards": pad(batch.rewards[:, None], (mask.shape[1] - 1, 0)), "values": wide(batch.entropies),
        "advantages": batch.advantages[:, None] * mask,
    })  # fmt: skip
    groups = [(start, start + RESPONSES) for start in range(0, ROWS, RESPONSES)]
    data.metadata = {
        "uids": list(map(str, batch.group.tolist())), "response_length": mask.shape[1],
        "avg_response_length": float(batch.lengths.double().mean()),
        "policy_mini_batch_boundaries": [(0, ROWS)], "policy_prompt_boundaries": groups,
    }  # fmt: skip
    return data


def update(case: Case, seed: int, **options: str) -> None:
    if case.right:
        raise NotOfferedError  # SkyRL pads on the left alone
    given = {f"trainer.algorithm.{name}": value for name, value in options.items()}
    given["trainer.micro_train_batch_size_per_gpu"] = ROWS // RANKS // case.micro
    given["trainer.max_tokens_per_microbatch"] = TOKENS if case.dynamic else -1
    trainer = trainer_of(RayPPOTrainer, settings(Path(tempfile.gettempdir()), **given))
    whole = make_batch(seed)
    table = Table.from_pretrained(at_end(whole.old, whole.lengths), freeze=False)
    fully_shard(table, mesh=MESH["dp"])
    optimizer = torch.optim.SGD(table.parameters(), lr=0.0)
    worker = object.__new__(PolicyWorkerBase)  # whose constructor is that of a Ray actor
    worker.cfg, worker.device_mesh, worker.mesh_rank = trainer.cfg.trainer, MESH, SimpleNamespace(dp_size=RANKS)
    worker.model, worker.optimizer, worker.scheduler = table, optimizer, SimpleNamespace(get_last_lr=lambda: [0.0])
    worker.policy_loss_fn = ppo_utils.PolicyLossRegistry.get(worker.cfg.algorithm.policy_loss_type)
    worker.strategy = object.__new__(FSDPStrategy)
    trainer.dispatch = SimpleNamespace(  # to SkyRL's workers, of which this process has one
        stage_data=lambda _, data, boundaries: [data.chunk(ROWS // RANKS)[RANK]],
        forward_backward_from_staged=lambda _, data: worker.forward_backward(data),
        optim_step=lambda _: optimizer.step(),
    )
    batch = make_batch(seed, ordered(case, seed, whole_groups=True))
    trainer._execute_training_step("policy", data_of(batch, case))


def advantages(
    case: Case, seed: int, trainer: type = RayPPOTrainer, estimator: str = "grpo", weights: str = "none"
) -> torch.Tensor:
    """In the trainer's process, which has the whole batch, and so sees no cut."""
    if case.right or case.ranks > 1 or case.micro > 1 or case.dynamic:
        raise NotOfferedError
    os.environ["CW_GRPO_WEIGHTS"] = weights
    given = {"trainer.algorithm.advantage_estimator": estimator, "generator.n_samples_per_prompt": RESPONSES}
    batch = make_batch(seed, ordered(case, seed))
    with tempfile.TemporaryDirectory() as folder:
        made = trainer_of(trainer, settings(Path(folder), **given))
        found = made.compute_advantages_and_returns(data_of(batch, case))["advantages"]
    at_begin = [row.roll(int(length) - WIDTH) for row, length in zip(found[:, case.left :], batch.lengths, strict=True)]
    return in_order(batch, torch.stack(at_begin))


def rows(own: Any) -> dict[str, Any]:
    """``own``: a policy loss with the signature of SkyRL's registry."""
    if own:
        ppo_utils.PolicyLossRegistry.register("own", own)
    found = {"loss: own": partial(update, policy_loss_type="own")} if own else {}
    found |= {row: partial(update, **options) for row, options in OPTIONS.items()}
    found |= {f"estimator: {name}": partial(advantages, estimator=str(name)) for name in ppo_utils.AdvantageEstimator}
    served = [name for name in BUILT_IN if not load(name).needs_entropies]  # which SkyRL does not have
    weighted = partial(advantages, trainer=CWGRPOTrainer)
    return found | {f"weights: {name}": partial(weighted, weights=name) for name in served}
