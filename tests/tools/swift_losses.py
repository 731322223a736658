"""Prints which losses of ms-swift keep the weights, by the gradients of its own function, and which we refuse."""

import json
from types import SimpleNamespace

import torch
from swift.rlhf_trainers import GRPOTrainer

from cw_plugin.errors import OptionsError
from cw_plugin.hosts.transformers_trainer import check_loss

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", "real")
LEVELS = ("token", "sequence", "sequence_token")


class Trainer(GRPOTrainer):
    """What the loss needs of a trainer, which is not constructed: its settings, and log-probs without a model."""

    def __init__(self, loss_type, level, log_probs):
        self.loss_type, self.importance_sampling_level, self.log_probs = loss_type, level, log_probs
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(num_processes=1, gather_for_metrics=lambda metric: metric)
        self.args = SimpleNamespace(delta=None)
        self.epsilon_low, self.epsilon_high, self.tau_pos, self.tau_neg, self.real_tau = 0.2, 5.0, 1.0, 1.05, 0.5
        self.fipo_gamma, self.fipo_clip_range, self.fipo_clip_high_only, self.fipo_safety_threshold = 0.9, 0.2, False, 3
        self.beta, self.max_completion_length, self.sdar_loss_coef, self.num_generations = 0.0, 9, 0, 2
        self.compute_entropy = self.overlong_filter = self.log_rollout_offpolicy_metrics = self._has_teacher = False
        self.disable_rollout_importance_sampling, self.rollout_importance_sampling_mode = True, None
        self.off_policy_sequence_mask_delta = self.chord_sft_iterator = None

    def _get_per_token_logps_and_entropies(self, *_, **__):
        return self.log_probs, None

    def _undo_gradient_accumulation_scaling(self, loss):
        return loss


def gradient(loss_type: str, level: str, advantages: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Of the loss with respect to log-probs that have moved a little since ``old``."""
    log_probs = (old + 0.01 * torch.linspace(-1, 1, old.numel()).view_as(old)).requires_grad_()
    mask = torch.ones_like(old, dtype=torch.bool)
    batch = SimpleNamespace(
        completion_mask=mask, truncated_mask=torch.zeros(len(old), dtype=torch.bool), advantages=advantages,
        old_per_token_logps=old, rollout_per_token_logps=None, teacher_per_token_logps=None,
        num_items_in_batch=mask.sum(), rewards=torch.tensor([1.0, 0.0]), seq_lengths=mask.sum(1),
    )  # fmt: skip
    loss, _ = Trainer(loss_type, level, log_probs)._compute_loss_and_metrics(None, {}, batch)
    return torch.autograd.grad(loss, log_probs)[0]


def keeps(loss_type: str, level: str) -> bool:
    """Whether a weight multiplies the gradient of its token, and of no other."""
    chance = torch.Generator().manual_seed(0)
    old, weights = -torch.rand(2, 9, generator=chance), 0.1 + torch.rand(2, 9, generator=chance)
    plain = torch.tensor([[1.0], [-1.0]]).expand(2, 9).contiguous()
    of_plain, weighted = (gradient(loss_type, level, advantages, old) for advantages in (plain, weights * plain))
    return torch.allclose(weighted, weights * of_plain, atol=1e-6)


def refused(loss_type: str, level: str) -> bool:
    arguments = SimpleNamespace(loss_type=loss_type, importance_sampling_level=level, use_liger_kernel=False)
    try:
        check_loss(arguments)
    except OptionsError:
        return True
    return False


found = {f"{loss} {level}": [keeps(loss, level), refused(loss, level)] for loss in LOSSES for level in LEVELS}
print(json.dumps(found))
