"""What the trainers of TRL and ms-swift share: both build on transformers' Trainer, and on accelerate."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import TrainingArguments

from cw_plugin.batch import Batch
from cw_plugin.errors import OptionsError
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
    _cw_prefix: str

    def _cw_begin(self, options: Options, prefix: str = "") -> None:
        """Make the run. The trainer is constructed.

        Args:
            options: of the method.
            prefix: what precedes an option's name in the host's configuration.
        """
        self._cw_prefix = prefix
        self._cw_run = ShardedRun(self.accelerator, self.num_generations, options, Path(self.args.output_dir))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the host does, but not in a folder of another method's checkpoints (OptionsError)."""
        folder, resumed_from = Path(self.args.output_dir), None
        if isinstance(resume_from_checkpoint, (str, os.PathLike)):
            resumed_from = Path(resume_from_checkpoint).resolve().parent
        self._cw_run.begin(folder, any(folder.glob("checkpoint-*")), resumed_from, self._cw_prefix)
        return super().train(resume_from_checkpoint, *args, **kwargs)

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
        for name, value in reweighted.metrics.items():
            self._metrics["train"][name].append(value)
        return reweighted.advantages
