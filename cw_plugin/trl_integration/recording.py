"""The covariance distribution as files, and entropy against its forecast, as the verl integration has them."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int
from torch import Tensor

from cw_plugin.covariance import CovarianceRecorder
from cw_plugin.files import write_whole
from cw_plugin.trl_integration.config import option

logger = logging.getLogger("cw_plugin")

FOLDER = "covariance"  # within output_dir


@dataclass(frozen=True)
class Drift:
    """What drives the entropy, at one log; means over its steps."""

    step: int
    entropy: float
    covariance_before: float
    covariance_after: float
    learning_rate: float


class Records:
    """What one trainer's run records.

    Args:
        trainer: a GRPOTrainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._step, self._number = 0, 0  # of the last generation batch: its first step, and its place in that step
        self._before: Drift | None = None

    def observer(self, mask: Int[Tensor, "rows time"]) -> CovarianceRecorder | None:
        """An observer for the next generation batch if one of the steps that train on it is the first or a due one."""
        args, step = self._trainer.args, self._trainer.state.global_step + 1
        self._step, self._number = step, self._number + 1 if self._step == step else 1
        steps = math.ceil(args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps)
        every = option(args, "cw_record_every")
        if every and any(step == 1 or step % every == 0 for step in range(step, step + steps)):
            return CovarianceRecorder(mask, option(args, "cw_record_tokens"))
        return None

    def write(self, recorder: CovarianceRecorder, completions: Int[Tensor, "rows time"]) -> None:
        """Write ``step_000050.parquet`` and, if tokens are asked for, ``step_000050.tokens.parquet``.

        Where a step has several generation batches, the later ones are ``step_000050-2.parquet`` and so on. A disk that
        refuses is said in the log, and training goes on.

        Args:
            completions: the token ids that the recorder has seen the covariance of.
        """
        if not self._trainer.accelerator.is_main_process:
            return
        args, step = self._trainer.args, self._step
        metadata = {"step": str(step)} | {name: option(args, f"cw_{name}") for name in ("scope", "kernel")}
        name = f"step_{step:06d}" + (f"-{self._number}" if self._number > 1 else "")
        tables: dict[str, dict[str, Any]] = {f"{name}.parquet": recorder.bins()}
        if option(args, "cw_record_tokens"):
            tables[f"{name}.tokens.parquet"] = self._with_text(recorder.extremes(), completions.tolist())
        folder = Path(args.output_dir) / FOLDER
        try:
            for file, columns in tables.items():
                table = pa.table(columns).replace_schema_metadata(metadata)
                write_whole(folder / file, functools.partial(pq.write_table, table, compression="zstd"))
        except OSError as error:
            logger.error("cw_grpo: the covariance of step %d is not recorded in %s: %s", step, folder, error)

    def _with_text(self, tokens: dict[str, Any], completions: list[list[int]]) -> dict[str, Any]:
        """Each token's text, and the text of its response up to there."""
        decode = self._trainer.processing_class.decode
        places = list(zip(tokens["row"].tolist(), tokens["position"].tolist(), strict=True))
        return {
            **tokens,
            "token": [decode([completions[row][at]]) for row, at in places],
            "context": [decode(completions[row][max(0, at - 50) : at]) for row, at in places],
        }

    def follow_entropy(self, metrics: Mapping[str, list[float]], learning_rate: float | None) -> dict[str, float]:
        """How entropy changed since the log before, and what was forecast; empty at the first log.

        To first order, an update of a softmax policy with step size eta changes entropy by ``-eta Cov(log pi, A)``
        (section 2.2 of the paper). With Adam, eta is not the learning rate, so the forecast tells sign and course
        rather than size.

        Args:
            metrics: TRL's since the log before, a list of values for each name.
            learning_rate: of the update in the step that is logged.
        """
        names = ("entropy", "cw_grpo/covariance_before", "cw_grpo/covariance_after")
        if learning_rate is None or not all(metrics.get(name) for name in names):
            return {}
        entropy, covariance_before, covariance_after = (sum(metrics[name]) / len(metrics[name]) for name in names)
        before, step = self._before, self._trainer.state.global_step
        self._before = Drift(step, entropy, covariance_before, covariance_after, learning_rate)
        if before is None:
            return {}
        eta = before.learning_rate * (step - before.step)
        return {
            "cw_grpo/entropy_change": entropy - before.entropy,
            "cw_grpo/entropy_forecast": -eta * before.covariance_after,
            "cw_grpo/entropy_forecast_grpo": -eta * before.covariance_before,
        }
