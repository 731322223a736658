"""The state of the training run in this process, and what it reports: metrics and token records."""

import gc
import logging
import weakref
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cw_plugin.errors import HostError
from cw_plugin.hosts.verl import NAME
from cw_plugin.hosts.verl.accepted_settings import read_options
from cw_plugin.method_file import refuse_other_method, write_method

if TYPE_CHECKING:  # the records load torch, and hooks.py must not
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerBase

    from cw_plugin.records.write import Batch

# A child of verl's logger: in the trainer's process the root logger shows only errors.
logger = logging.getLogger("verl.cw_plugin")


class VerlTrainer(Protocol):
    """What is read of a trainer of verl."""

    config: "DictConfig"
    global_steps: int  # set when training begins
    tokenizer: "PreTrainedTokenizerBase"


class VerlRun:
    """One training run that uses cw_grpo.

    Args:
        trainer: verl's trainer, in its constructor. Only a weak reference is kept.

    Raises:
        OptionsError: the run would resume checkpoints of another method.
    """

    def __init__(self, trainer: VerlTrainer) -> None:
        from cw_plugin.records.write import TokenFiles

        self.trainer = weakref.ref(trainer)
        self.options = read_options(trainer.config.algorithm)
        self.folder = Path(trainer.config.trainer.default_local_dir)
        # With resume_path, a user begins at the checkpoint of another run on purpose.
        resumes = trainer.config.trainer.get("resume_mode") == "auto"
        if resumes and (self.folder / "latest_checkpointed_iteration.txt").exists():
            refuse_other_method(self.folder, self.options)
        self._method_is_written = False
        self._unlogged: list[dict[str, float]] = []  # metrics of each batch of the step, until verl logs the step
        self._warned = False
        self._files = TokenFiles(self.folder, self.options, logger)

    @property
    def step(self) -> int | None:
        """The current training step, counted from 1; None before the first."""
        return getattr(self.trainer(), "global_steps", None)

    @property
    def records_this_step(self) -> bool:
        """Whether the tokens of the current step are to be written."""
        return self.options.is_due(self.step)

    def keep(self, metrics: dict[str, float]) -> None:
        """Keep the metrics of one batch until verl logs its step."""
        if not self._method_is_written:
            write_method(self.folder, self.options, logger)
            self._method_is_written = True
        self._unlogged.append(metrics)

    def complete(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What verl should log in place of ``metrics``: the estimator's are added.

        If a step has several batches (``trainer_mode=separate_async``), verl's rules merge their metrics. verl calls
        the loss's metrics ``actor/cw_grpo/*``; they become ``cw_grpo/*``.
        """
        from verl.utils.metric import reduce_metrics

        completed: dict[str, Any] = {}
        for key, value in metrics.items():
            is_of_loss = key.startswith(f"actor/{NAME}/")
            completed[key.removeprefix("actor/") if is_of_loss else key] = value
        by_name: dict[str, list[float]] = defaultdict(list)
        for batch in self._unlogged:
            for key, number in batch.items():
                by_name[key].append(number)
        self._unlogged.clear()
        completed.update(reduce_metrics(by_name))
        if completed.get(f"{NAME}/signal_share") == 0:
            self._warn_once()
        return completed

    def _warn_once(self) -> None:
        """Say that a step trains plain GRPO, unless the run asks for that."""
        if self.options.kernel != "none" and not self._warned:
            self._warned = True
            logger.warning(
                "cw_grpo: every weight was 1 in step %s, as in plain GRPO, because advantages did not differ where "
                "tokens share statistics. If this goes on, all rewards of a prompt are equal, or there is only one "
                "response in a group or, for loss_mode=cw_grpo, in a micro-batch; it is logged as "
                "cw_grpo/signal_share",
                self.step,
            )

    def record(self, batch: "Batch") -> None:
        """Write the tokens of this step."""
        trainer = self.trainer()
        assert trainer is not None  # it is computing advantages right now
        self._files.write(trainer.global_steps, batch, trainer.tokenizer)


_current: VerlRun | None = None


def begin(trainer: VerlTrainer | None) -> None:
    """Make the run of ``trainer`` that of this process; None if it does not use cw_grpo.

    Raises:
        HostError: another trainer that uses cw_grpo still lives. verl does not say which trainer computes advantages,
            so the steps of one would be recorded as steps of the other.
    """
    global _current
    if trainer is not None and _current is not None:
        _refuse_beside(_current)
    _current = None if trainer is None else VerlRun(trainer)


def _refuse_beside(run: VerlRun) -> None:
    if run.trainer() is None:
        return
    gc.collect()  # a trainer that nobody uses any more may still be there, in a cycle
    if run.trainer() is not None:
        raise HostError(
            f"this process already has a trainer with cw_grpo, whose folder is {run.folder}",
            fix="start the second one in a process of its own",
        )


def current() -> VerlRun | None:
    """The run of this process, if it uses cw_grpo."""
    return _current
