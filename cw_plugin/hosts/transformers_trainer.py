"""What the trainers of TRL and ms-swift share: both build on transformers' Trainer, and on accelerate.

A trainer of another such host is a class in front of the host's own, ``class CWGRPOTrainer(ReweightingTrainer,
GRPOTrainer)``. It does this, in this order:

1. In ``__init__``, before the host's: require the host's NEEDS. Call :func:`check_loss`, unless the weights are "none".
2. In ``__init__``, after the host's: call :meth:`ReweightingTrainer._cw_begin`.
3. In the host's method that makes a batch, after the host's own, and in training alone: put the rows of this process
   into a :class:`~cw_plugin.batch.Batch`, call :meth:`ReweightingTrainer._cw_reweight`, and put what it returns in
   place of the advantages, unless that is None. ``_cw_groups``, ``_cw_own_rows`` and ``_cw_entropies`` help to make the
   Batch; where the host has not computed log-probs, so does ``_cw_forward_of_host``.
4. In the host's loss: raise a HostError, if the advantages may come from elsewhere and be plain.

:class:`ReweightingTrainer` overrides two methods of the host, and names the attributes of the host that it reads.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import TrainingArguments

from cw_plugin.batch import Batch
from cw_plugin.errors import HostError, OptionsError
from cw_plugin.options import Options
from cw_plugin.sharded import Accelerator, ShardedRun

if TYPE_CHECKING:
    from transformers import Trainer, TrainerState
else:
    Trainer = object  # the host's trainer comes with the class that derives from this one


@runtime_checkable
class GRPOArguments(Protocol):
    """The fields that are read of a host's GRPOConfig."""

    output_dir: str
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_iterations: int
    importance_sampling_level: str
    loss_type: str
    use_liger_kernel: bool


def training_arguments(args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
    """The argument ``args`` of a trainer's constructor, given by name or by position; None if it is not given."""
    if "args" in kwargs:
        return kwargs["args"]
    return next((value for value in args if isinstance(value, TrainingArguments)), None)


def check_loss(args: GRPOArguments, has_ligers_loss: bool = True, level: str = "token") -> None:
    """Raise OptionsError if the loss that a trainer's arguments choose takes one number for a whole response.

    CISPO's ratio has no gradient, and multiplies each token's own log-prob.

    Args:
        args: of the trainer.
        has_ligers_loss: whether use_liger_kernel chooses another loss.
        level: the importance_sampling_level to take in place of sequence.
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
                fix=f"use {level}" if name == "importance_sampling_level" else "leave it at its default",
            )


class ReweightingTrainer(Trainer):
    """Stands in front of a host's GRPOTrainer, whose batches it reweights; the module says how to derive from it."""

    # Of the host's trainer.
    accelerator: Accelerator
    args: GRPOArguments
    model: torch.nn.Module
    num_generations: int  # responses to a prompt, which are consecutive in the whole batch
    state: "TrainerState"
    _metrics: dict[str, dict[str, list[float]]]  # under "train", what the host's logger averages

    # Ours.
    _cw_run: ShardedRun
    _cw_computed: list[tuple[Tensor, Tensor]]  # log-probs of a batch that is being made, and their entropies

    def _cw_begin(self, options: Options) -> None:
        """Make the run. The trainer is constructed."""
        self._cw_run = ShardedRun(self.accelerator, self.num_generations, options, Path(self.args.output_dir))
        self._cw_computed = []

    def train(
        self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Override of the host's: train, but not in a folder of another method's checkpoints (OptionsError)."""
        folder, resumed_from = Path(self.args.output_dir), None
        if isinstance(resume_from_checkpoint, (str, os.PathLike)):
            resume_from_checkpoint = os.fspath(resume_from_checkpoint)
            resumed_from = Path(resume_from_checkpoint).resolve().parent
        self._cw_run.begin(folder, any(folder.glob("checkpoint-*")), resumed_from)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Override of the host's: log-probs. Those of a batch that is made come with the entropies that weights need.

        The loss is computed with gradients, and evaluation out of training mode.
        """
        makes_a_batch = self.model.training and model is self.model and not torch.is_grad_enabled()
        if not (makes_a_batch and self._cw_run.weighting.needs_entropies):
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        result = super()._get_per_token_logps_and_entropies(model, *args, **{**kwargs, "compute_entropy": True})
        self._cw_computed.append(result[:2])
        return result

    def _cw_forward_of_host(self) -> Callable[..., Any]:
        """The host's own ``_get_per_token_logps_and_entropies``."""
        of_host: Callable[..., Any] = super()._get_per_token_logps_and_entropies
        return of_host

    def _cw_entropies(self, log_probs: Tensor) -> Tensor:
        """The entropies that the host has computed with these log-probs, which must be the same tensor, not a copy."""
        for of_host, entropies in self._cw_computed:
            if of_host is log_probs:
                return entropies
        raise HostError(
            "old_per_token_logps do not come from _get_per_token_logps_and_entropies, so there are no entropies",
            fix="choose a weighting that needs none, such as gaussian or ar",
        )

    def _cw_own_rows(self, rows: int) -> slice:
        """Where the rows of this process are in the whole batch, of which every process has this many."""
        first_row = self.accelerator.process_index * rows
        return slice(first_row, first_row + rows)

    def _cw_groups(self, rows: int) -> Tensor:
        """The number of the prompt group of each row of this process."""
        own = self._cw_own_rows(rows)
        return torch.arange(own.start, own.stop) // int(self.num_generations)

    def _cw_reweight(self, batch: Batch) -> Float[Tensor, "rows time"] | None:
        """Reweight a generation batch and log its statistics; None if the host's own advantages stay."""
        args, step = self.args, self.state.global_step + 1
        updates = math.ceil(args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps)
        reweighted = self._cw_run.reweight(batch, step, updates)
        self._cw_computed = []
        for name, value in reweighted.metrics.items():
            self._metrics["train"][name].append(value)
        return reweighted.advantages
