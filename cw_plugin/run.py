"""One training run, on any host: options in; weighted advantages, metrics, token records and the method file out."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from cw_plugin.batch import Batch
from cw_plugin.files import write_whole
from cw_plugin.method_file import refuse_other_method, write_method
from cw_plugin.options import Options
from cw_plugin.records.write import TokenFiles
from cw_plugin.reweight import Applied, apply_weighting
from cw_plugin.statistics import Sums

LOGGER = logging.getLogger("cw_plugin")


@dataclass(frozen=True)
class Reweighted:
    """What a run makes of a batch.

    Attributes:
        advantages: ``w~ A`` of every token, on the device of the log-probs; None with the weights "none". Then the
            host's own advantages stay, bit for bit.
        metrics: for the host's logger, by name.
    """

    advantages: Float[Tensor, "rows time"] | None
    metrics: dict[str, float]


class Run:
    """A training run in a process that has whole batches.

    For one that has a part, :mod:`cw_plugin.sharded` overrides what is marked as an override point.

    A host makes one when it begins to train, calls :meth:`begin` before it loads a checkpoint, and :meth:`reweight`
    after it has computed the advantages of a batch.

    Args:
        options: of the method.
        folder: the run's, for the token records and :meth:`write_settings`; checkpoints may lie elsewhere.
        logger: writes to the run's log.
    """

    def __init__(self, options: Options, folder: Path, logger: logging.Logger = LOGGER) -> None:
        self.options = options
        self.weighting = options.load_weighting()
        self._folder = folder
        self._logger = logger
        self._files = TokenFiles(folder, options, logger)
        self._checkpoints: Path | None = None
        self._has_said_that_weights_are_1 = False

    def begin(self, checkpoints: Path | None, has_checkpoint: bool, resumed_from: Path | None = None) -> None:
        """Refuse a folder of checkpoints of another scope, weights or settings, whether or not the run resumes them.

        A run that starts anew there would overwrite some of them and leave others, and the next start would resume
        one of these. method_file.py reads and writes the file that names their method.

        Args:
            checkpoints: the folder where the host writes its checkpoints; None if it is not on this machine.
            has_checkpoint: whether one is there.
            resumed_from: the folder that holds the checkpoint which the run resumes, if it is another folder.

        Raises:
            OptionsError: the folder's checkpoints have another method.
        """
        if checkpoints is not None and has_checkpoint:
            refuse_other_method(checkpoints, self.options)
        if resumed_from is not None:
            refuse_other_method(resumed_from, self.options)
        self._checkpoints = checkpoints
        trains_on = "the host's own" if self.options.weights == "none" else "reweighted"
        self._logger.info("cw_grpo: this run trains on %s advantages, %s", trains_on, self.options)

    def reweight(self, batch: Batch, step: int, updates: int = 1) -> Reweighted:
        """Reweight the advantages of a batch, and record its tokens if one of its steps is due.

        Args:
            batch: of the step.
            step: the first that trains on the batch, counted from 1; 0 outside of training.
            updates: how many steps train on it.

        Raises:
            NonFiniteError, OptionsError: as in :func:`cw_plugin.reweight.reweight`.
        """
        self._write_method_once()
        due = [later for later in range(step, step + updates) if self.options.is_due(later)]
        is_recorded = bool(due) and batch.read_sequences is not None
        applied = self._apply_to_batch(batch, step, keeps_weights=is_recorded)
        statistics = applied.sums.statistics()
        if statistics.signal_share == 0 and statistics.weight_min == 1:
            self._say_once_that_weights_are_1(step)
        if is_recorded:
            self._record(due[0], replace(batch, weights=applied.weights), applied.sums)
        advantages = None if self.options.weights == "none" else applied.advantages.to(batch.log_probs.device)
        return Reweighted(advantages, statistics.as_metrics(applied.seconds))

    def write_settings(self, settings: Mapping[str, object]) -> None:
        """Write the host's settings, and ours with ``cw_`` before their names, to the run's folder, for the reports."""
        ours = {f"cw_{name}": value for name, value in asdict(self.options).items()}
        write_whole(self._folder / "training_args.json", json.dumps({**settings, **ours}, indent=1, default=str))

    def _apply_to_batch(self, batch: Batch, step: int, keeps_weights: bool) -> Applied:
        """Override point: the run's weighting on the batch's rows, with the sums of the whole batch."""
        return self._apply_to_rows(batch.on_cpu(), step, keeps_weights)

    def _apply_to_rows(self, batch: Batch, step: int, keeps_weights: bool) -> Applied:
        """The run's weighting, on these rows alone."""
        return apply_weighting(
            self.weighting,
            batch.log_probs,
            batch.advantages,
            batch.response_mask,
            group=batch.group if self.options.scope == "group" else None,
            entropies=batch.entropies,
            step=step,
            keeps_weights=keeps_weights,
        )

    def _record(self, step: int, batch: Batch, sums: Sums) -> None:
        """Override point: write the token record of a batch, whose weights and sums are given."""
        if self._is_main_process:
            self._files.write(step, batch.on_cpu(), sums)

    @property
    def _is_main_process(self) -> bool:
        """Override point: whether this process writes the run's files."""
        return True

    def _write_method_once(self) -> None:
        """Before the first update, and so before the first checkpoint."""
        if self._checkpoints is not None and self._is_main_process:
            write_method(self._checkpoints, self.options, self._logger)
            self._checkpoints = None

    def _say_once_that_weights_are_1(self, step: int) -> None:
        if self.options.weights == "none" or self._has_said_that_weights_are_1:
            return
        self._has_said_that_weights_are_1 = True
        self._logger.warning(
            "cw_grpo: every weight was 1 in step %s, as in plain GRPO, because advantages did not differ where tokens "
            "share statistics. If this goes on, all rewards of a prompt are equal, or a group has only one response. "
            "It is logged as cw_grpo/signal_share",
            step,
        )
