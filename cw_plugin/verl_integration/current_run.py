"""The state of the training run in this process, and what it reports: metrics and token records."""

import gc
import logging
import weakref
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cw_plugin.errors import HostError
from cw_plugin.method_file import refuse_other_method, write_method
from cw_plugin.verl_integration import NAME
from cw_plugin.verl_integration.accepted_settings import read_options

if TYPE_CHECKING:  # it loads torch, and hooks.py must not
    from cw_plugin.records.write import Batch

# A child of verl's logger: in the trainer's process the root logger shows only errors.
logger = logging.getLogger("verl.cw_plugin")


class VerlRun:
    """One training run that uses cw_grpo. It begins when verl's trainer is constructed, of which it reads ``config``,
    ``global_steps`` and ``tokenizer``, and keeps only a weak reference. To resume another method's run is an
    OptionsError."""

    def __init__(self, trainer: Any) -> None:
        from cw_plugin.records.write import TokenFiles

        self.trainer = weakref.ref(trainer)
        self.config = trainer.config
        self.options = read_options(trainer.config.algorithm)
        self._batches: list[dict[str, float]] = []  # metrics of each batch of the step, until verl logs the step
        self._warned = False
        self.folder = Path(self.config.trainer.default_local_dir)
        # With resume_path, a user begins at the checkpoint of another run on purpose.
        resumes = self.config.trainer.get("resume_mode") == "auto"
        if resumes and (self.folder / "latest_checkpointed_iteration.txt").exists():
            refuse_other_method(self.folder, self.options)
        self._method_written = False
        self._files = TokenFiles(self.folder, self.options, logger)

    @property
    def step(self) -> int | None:
        """The current training step, counted from 1; None before the first."""
        return getattr(self.trainer(), "global_steps", None)

    @property
    def records_this_step(self) -> bool:
        return self.options.is_due(self.step)

    def note(self, metrics: dict[str, float]) -> None:
        """Keep the metrics of one batch until verl logs its step."""
        if not self._method_written:
            write_method(self.folder, self.options, logger)
            self._method_written = True
        self._batches.append(metrics)

    def complete(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What verl should log in place of ``metrics``.

        Adds the estimator's metrics. If a step has several batches (``trainer_mode=separate_async``), verl's rules
        merge them. verl calls the loss's metrics ``actor/cw_grpo/*``; they become ``cw_grpo/*``.
        """
        from verl.utils.metric import reduce_metrics

        result = {
            key.removeprefix("actor/") if key.startswith(f"actor/{NAME}/") else key: value
            for key, value in metrics.items()
        }
        noted: dict[str, list[float]] = defaultdict(list)
        for batch in self._batches:
            for key, value in batch.items():
                noted[key].append(value)
        self._batches.clear()
        result.update(reduce_metrics(noted))
        if result.get(f"{NAME}/signal_share") == 0 and self.options.kernel != "none" and not self._warned:
            self._warned = True
            logger.warning(
                "cw_grpo: every weight was 1 in step %s, as in plain GRPO, because advantages did not differ where "
                "tokens share statistics. If this goes on, all rewards of a prompt are equal, or there is only one "
                "response in a group (rollout.n=1) or, for loss_mode=cw_grpo, in a micro-batch; it is logged as "
                "cw_grpo/signal_share",
                self.step,
            )
        return result

    def record(self, batch: "Batch") -> None:
        """Write the tokens of this step."""
        trainer: Any = self.trainer()  # it is computing advantages right now
        self._files.write(trainer.global_steps, batch, trainer.tokenizer)


_current: VerlRun | None = None


def begin(trainer: Any | None) -> None:
    """Make the run of ``trainer`` that of this process; None if it does not use cw_grpo. If another trainer that uses
    cw_grpo still lives, it is a HostError: verl does not say which trainer computes advantages, so the steps of one
    would be recorded as steps of the other."""
    global _current
    if trainer is not None and _current is not None and _current.trainer() is not None:
        gc.collect()  # one that nobody uses any more may still be there, in a cycle
        if _current.trainer() is not None:
            raise HostError(
                f"this process already has a trainer with cw_grpo, whose folder is {_current.folder}; start the second "
                "one in a process of its own"
            )
    _current = None if trainer is None else VerlRun(trainer)


def current() -> VerlRun | None:
    """The run of this process, if it uses cw_grpo."""
    return _current
