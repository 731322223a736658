"""Writes token records, and compares entropy with its forecast, as the verl integration does."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cw_plugin.recording import Batch, Drift, EntropyBounds, TokenFiles, entropy_metrics
from cw_plugin.trl_integration.config import option

logger = logging.getLogger("cw_plugin")


class Records:
    """The records of one trainer's run.

    Args:
        trainer: a GRPOTrainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._step = 0  # the first step that trains on the last generation batch
        self._before: tuple[int, float, Drift] | None = None  # of the previous log: step, learning rate, entropy
        scope, kernel = option(trainer.args, "cw_scope"), option(trainer.args, "cw_kernel")
        self._files = TokenFiles(Path(trainer.args.output_dir), scope, kernel, logger)
        low, high = (option(trainer.args, f"cw_entropy_{bound}") for bound in ("low", "high"))
        self._bounds = EntropyBounds(low, high, logger, prefix="cw_")

    def begin_batch(self) -> bool:
        """Whether to record the next generation batch: one of its training steps is the first, or due for a record."""
        args, step = self._trainer.args, self._trainer.state.global_step + 1
        self._step = step
        steps = math.ceil(args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps)
        every = option(args, "cw_record_every")
        return every > 0 and any(step == 1 or step % every == 0 for step in range(step, step + steps))

    def write(self, batch: Batch) -> None:
        if self._trainer.accelerator.is_main_process:
            self._files.write(self._step, batch, self._trainer.processing_class)

    def finish(self) -> None:
        """Wait until the records are on disk."""
        self._files.finish()

    def follow_entropy(self, metrics: Mapping[str, list[float]], learning_rate: float | None) -> dict[str, float]:
        """The change of entropy since the previous log, and its forecast; empty at the first log.

        Warns when entropy leaves its bounds.

        Args:
            metrics: TRL's metrics since the previous log, a list of values for each name.
            learning_rate: of the update in the step that is logged.
        """
        names = ("entropy", "cw_grpo/covariance_before", "cw_grpo/covariance_after")
        if learning_rate is None or not all(metrics.get(name) for name in names):
            return {}
        now, step = Drift(*(sum(metrics[name]) / len(metrics[name]) for name in names)), self._trainer.state.global_step
        last, self._before = self._before, (step, learning_rate, now)
        if self._trainer.accelerator.is_main_process:
            self._bounds.check(step, now, last[2] if last else now)
        if last is None:
            return {}
        last_step, rate, before = last
        return entropy_metrics(before, now, rate * (step - last_step))
