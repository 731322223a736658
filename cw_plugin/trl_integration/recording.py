"""The covariance distribution of a generation batch as files, as the verl integration writes them."""

from __future__ import annotations

import functools
import logging
import math
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


class Records:
    """The records of one trainer's run.

    Args:
        trainer: a GRPOTrainer.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._step, self._number = (
            0,
            0,
        )  # of the last generation batch: its first step, and which one of that step it is

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
