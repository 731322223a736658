"""What the trainers of TRL and ms-swift share: both build on transformers' Trainer, and on accelerate."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import TrainingArguments

from cw_plugin.batch import Batch
from cw_plugin.errors import HostError, OptionsError
from cw_plugin.options import Options
from cw_plugin.sharded import ShardedRun

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object  # the host's trainer comes with the class that derives from this one


def training_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The argument ``args`` of a trainer's constructor, given by name or by position; None if it is not given."""
    if "args" in kwargs:
        return kwargs["args"]
    return next((value for value in args if isinstance(value, TrainingArguments)), None)


def check_loss(args: Any, has_ligers_loss: bool = True) -> None:
    """Raise OptionsError if the loss that a trainer's arguments choose takes one number for a whole response.

    CISPO's ratio has no gradient, and multiplies each token's own log-prob.
    """
    loses_the_weights = {
        "importance_sampling_level": args.importance_sampling_level == "sequence" and args.loss_type != "cispo",
        "loss_type": args.loss_type == "real",  # of ms-swift
        "use_liger_kernel": args.use_liger_kernel and has_ligers_loss,
    }
    for name, loses in loses_the_weights.items():
        if loses:
            raise OptionsError(
                f"{name}={getattr(args, name)!r} takes one ratio or advantage for a whole response, so the loss would "
                "lose the weights",
                fix="leave it at its default",
            )


class ReweightingTrainer(Trainer):
    """Stands in front of a host's GRPOTrainer, whose batches it reweights."""

    _cw_run: ShardedRun
    _cw_computed: list[tuple[Tensor, Tensor]]  # log-probs of a batch that is being made, and their entropies

    def _cw_begin(self, options: Options) -> None:
        """Make the run. The trainer is constructed."""
        self._cw_run = ShardedRun(self.accelerator, self.num_generations, options, Path(self.args.output_dir))
        self._cw_computed = []

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the host does, but not in a folder of another method's checkpoints (OptionsError)."""
        folder, resumed_from = Path(self.args.output_dir), None
        if isinstance(resume_from_checkpoint, (str, os.PathLike)):
            resumed_from = Path(resume_from_checkpoint).resolve().parent
        self._cw_run.begin(folder, any(folder.glob("checkpoint-*")), resumed_from)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """The host's log-probs. Entropies are computed with those of a batch that is made, if the weighting needs them.

        The loss is computed with gradients, and evaluation out of training mode.
        """
        makes_a_batch = self.model.training and model is self.model and not torch.is_grad_enabled()
        if not (makes_a_batch and self._cw_run.weighting.needs_entropies):
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        result = super()._get_per_token_logps_and_entropies(model, *args, **{**kwargs, "compute_entropy": True})
        self._cw_computed.append(result[:2])
        return result

    def _cw_entropies(self, log_probs: Sequence[Tensor]) -> list[Tensor]:
        """The entropies that were computed with these log-probs, for a weighting that needs them."""
        return [_entropies_of(of_tokens, self._cw_computed) for of_tokens in log_probs]

    def _cw_own_rows(self, rows: int) -> slice:
        """Where the rows of this process are in the whole batch, of which every process has this many."""
        first_row: int = self.accelerator.process_index * rows
        return slice(first_row, first_row + rows)

    def _cw_groups(self, rows: int) -> Tensor:
        """The prompt group of this process's rows: responses to a prompt are consecutive in the whole batch."""
        own = self._cw_own_rows(rows)
        return torch.arange(own.start, own.stop) // int(self.num_generations)

    def _cw_reweight(self, batch: Batch) -> Float[Tensor, "rows time"] | None:
        """Reweight a generation batch and log its statistics; None if the host's own advantages stay."""
        args, step = self.args, self.state.global_step + 1
        updates = math.ceil(args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps)
        reweighted = self._cw_run.reweight(batch, range(step, step + updates))
        self._cw_computed = []
        for name, value in reweighted.metrics.items():
            self._metrics["train"][name].append(value)
        return reweighted.advantages


def _entropies_of(log_probs: Tensor, computed: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The entropies that the host has computed with these log-probs, which it may have moved to another device."""
    for of_tokens, entropies in computed:
        if of_tokens is log_probs or torch.equal(of_tokens.cpu(), log_probs.cpu()):
            return entropies.to(log_probs.device)
    raise HostError(
        "old_per_token_logps do not come from _get_per_token_logps_and_entropies, so there are no entropies",
        fix="choose a weighting that needs none, such as gaussian or ar",
    )
