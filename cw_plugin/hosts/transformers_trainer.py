"""What the trainers of TRL and ms-swift share: both build on transformers' Trainer, and on accelerate."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from cw_plugin.batch import Batch
from cw_plugin.options import Options
from cw_plugin.sharded import ShardedRun

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object  # the host's trainer comes with the class that derives from this one


class ReweightingTrainer(Trainer):
    """Stands in front of a host's GRPOTrainer, whose batches it reweights."""

    _cw_run: ShardedRun
    _cw_resumed_from: Path | None = None

    def _cw_begin(self, options: Options, prefix: str = "") -> None:
        """Make the run. The trainer is constructed.

        Args:
            options: of the method.
            prefix: what precedes an option's name in the host's configuration.
        """
        folder = Path(self.args.output_dir)
        self._cw_run = ShardedRun(self.accelerator, self.num_generations, options, folder)
        self.add_callback(_BeforeTraining(self, prefix))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as the host does, but not in a folder of another method's checkpoints (OptionsError)."""
        if isinstance(resume_from_checkpoint, (str, os.PathLike)):  # transformers tells no callback
            self._cw_resumed_from = Path(resume_from_checkpoint).resolve().parent
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


class _BeforeTraining(TrainerCallback):
    """Begins the run once the trainer knows where its checkpoints are."""

    def __init__(self, trainer: ReweightingTrainer, prefix: str) -> None:
        self._trainer = trainer
        self._prefix = prefix

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Refuse a folder of another method's checkpoints (OptionsError)."""
        folder, trainer = Path(args.output_dir), self._trainer
        has_checkpoint = any(folder.glob("checkpoint-*"))
        trainer._cw_run.begin(folder, has_checkpoint, trainer._cw_resumed_from, self._prefix)
