"""The trainer: SkyRL's RayPPOTrainer, or one derived from it, trained on w~ A in place of A."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from skyrl.train.config import get_config_as_dict
from skyrl.train.trainer import RayPPOTrainer
from torch import Tensor

from cw_plugin.batch import Batch, Tokenizer, group_numbers, of_responses
from cw_plugin.errors import HostError
from cw_plugin.files import is_remote
from cw_plugin.hosts.skyrl.refused_settings import check, has_checkpoint, resumed_from
from cw_plugin.options import Options
from cw_plugin.run import Run

if TYPE_CHECKING:
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch


class CWGRPOTrainer(RayPPOTrainer):
    """RayPPOTrainer whose advantages are multiplied by the weights. It takes the arguments of RayPPOTrainer.

    Weights are computed in the trainer's process over the whole batch, before SkyRL divides advantages by the number
    of tokens (loss_reduction) and spreads rows over mini-batches and workers. A prompt group is a uid: all responses to
    a prompt, and with step-wise trajectories all their steps. Tokens that the loss leaves out (loss_mask 0), such as
    those of an environment and of padding rows, take no part.

    Log-probs are SkyRL's ``action_log_probs``, of the policy before its update. For losses that optimise against the
    rollout's log-probs, SkyRL would skip the forward pass that computes them; here it runs.

    Records and settings go to ``trainer.export_path``.

    Raises:
        OptionsError: a setting under which the weights would not be the paper's, or would be lost.
        HostError: SkyRL lacks what the weights need, or a program trains on advantages that were not reweighted.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        check(self.cfg)
        self._cw_run = Run(Options.from_environment(), Path(self.cfg.trainer.export_path))
        self._cw_reweighted = False
        folder = self.cfg.trainer.ckpt_path
        checkpoints = None if is_remote(folder) else Path(folder)
        self._cw_run.begin(checkpoints, has_checkpoint(self.cfg), resumed_from(self.cfg))
        if not is_remote(self.cfg.trainer.export_path):
            self._cw_run.write_settings(get_config_as_dict(self.cfg))

    def _skip_policy_forward(self, training_input: "TrainingInputBatch") -> bool:
        return False  # weights need the policy's log-probs, whichever the loss takes

    @torch.no_grad()
    def compute_advantages_and_returns(self, data: "TrainingInputBatch") -> "TrainingInputBatch":
        """Put w~ A in place of the advantages, and the metrics of the weights among those of the step."""
        data = super().compute_advantages_and_returns(data)
        reweighted = self._cw_run.reweight(_batch(data, self.tokenizer), self.global_step)
        if reweighted.advantages is not None:
            data["advantages"] = reweighted.advantages.to(data["advantages"].dtype)
        self.all_metrics.update(reweighted.metrics)
        self._cw_reweighted = True
        return data

    def train_critic_and_policy(self, data: "TrainingInputBatch") -> dict[str, float]:
        """Train on advantages that were reweighted; a HostError if they were not."""
        if not self._cw_reweighted:
            raise HostError(
                f"{type(self).__name__} trains without compute_advantages_and_returns of CWGRPOTrainer, so it would "
                "train on plain advantages",
                fix="let it call that method first, as RayPPOTrainer does",
            )
        self._cw_reweighted = False
        metrics: dict[str, float] = super().train_critic_and_policy(data)
        return metrics


def _batch(data: "TrainingInputBatch", tokenizer: Tokenizer) -> Batch:
    """The batch of SkyRL. Its rows are padded on the left, and responses end at the last column."""
    if data["action_log_probs"] is None:
        raise HostError(
            "the batch has no action_log_probs", fix="let the trainer's forward pass compute them for every loss"
        )
    mask = data["loss_mask"] != 0
    return Batch(
        log_probs=data["action_log_probs"].float(),
        advantages=of_responses(data["advantages"].float(), mask),
        response_mask=mask,
        group=group_numbers(data.metadata["uids"]),
        rewards=_rewards(data),
        read_sequences=functools.partial(_sequences, data),
        tokenizer=tokenizer,
    )


def _sequences(data: "TrainingInputBatch", rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Token ids of prompt and response for some rows."""
    ids, attended = data["sequences"], data["attention_mask"] != 0
    width = data["loss_mask"].shape[1]
    ends = (ids.shape[1] - data["response_mask"].sum(1)).tolist()  # of the prompts
    return [(ids[row, : ends[row]][attended[row, : ends[row]]], ids[row, -width:]) for row in rows]


def _rewards(data: "TrainingInputBatch") -> Tensor:
    """The reward of each row's response: with step-wise trajectories, that of the trajectory's last step."""
    rewards: Tensor = data["rewards"].sum(-1).float()
    if "is_last_step" not in data.metadata:
        return rewards
    is_last = torch.tensor(data.metadata["is_last_step"])
    of_trajectories = rewards[is_last]
    trajectories_that_ended_before = is_last.cumsum(0) - is_last.long()
    return of_trajectories[trajectories_that_ended_before]
