"""What is known of the training run in this process, and what it reports: metrics and covariance records."""

from __future__ import annotations

import functools
import logging
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from cw_plugin.covariance import CovarianceRecorder
from cw_plugin.files import write_whole
from cw_plugin.verl_integration import NAME
from cw_plugin.verl_integration.options import Options, bypasses_old_log_probs

# Beneath verl's own logger: in the trainer's process others set the root logger to errors only.
logger = logging.getLogger("verl.cw_plugin")

FOLDER = "covariance"  # within trainer.default_local_dir

Responses = Callable[[Sequence[int]], Sequence[Sequence[int]]]  # token ids of the responses in some rows of a batch


@dataclass(frozen=True)
class Drift:
    """Of one training step: the entropy before its update, and what drives it."""

    entropy: float
    covariance_before: float
    covariance_after: float
    learning_rate: float | None  # of its update, where the step before is known
    next_learning_rate: float  # verl logs it after the scheduler's step


class Run:
    """One training run that uses cw_grpo, from the construction of verl's trainer on.

    Args:
        trainer: ``PPOTrainer`` or ``RayPPOTrainer`` of verl: its ``config``, ``global_steps`` and ``tokenizer`` are
            read. It is not kept alive.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self.config = trainer.config
        self.options = Options.from_config(trainer.config.algorithm)
        self._batches: list[dict[str, float]] = []  # metrics of each batch of the step, until verl logs the step
        self._before: Drift | None = None
        self._outside = False  # whether the entropy was outside its band, and so has been warned of
        self._recorded: tuple[int | None, int] = (None, 0)  # the step that was last recorded, and how often
        bounded = (self.options.entropy_low, self.options.entropy_high) != (None, None)
        if bounded and bypasses_old_log_probs(self.config):
            logger.warning(
                "cw_grpo: entropy_low and entropy_high have no effect, because rollout_correction.bypass_mode=True "
                "makes verl log no entropy"
            )

    @property
    def step(self) -> int | None:
        """The training step under way, counted from 1; None before the first."""
        return getattr(self._trainer(), "global_steps", None)

    def recorder(self, response_mask: Tensor) -> CovarianceRecorder | None:
        """An observer for the weights, if this step is to be recorded."""
        return CovarianceRecorder(response_mask, self.options.record_tokens) if self.options.is_due(self.step) else None

    def note(self, metrics: dict[str, float]) -> None:
        """Keep the metrics of one batch until verl logs its step."""
        self._batches.append(metrics)

    def complete(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What verl should log in place of ``metrics``.

        The estimator's metrics are added; of several batches in one step (``trainer_mode=separate_async``) they are
        merged by verl's rules. ``actor/cw_grpo/*``, as the loss's metrics are called on their way, lose ``actor/``.
        """
        from verl.utils.metric import reduce_metrics

        result = {key.removeprefix("actor/") if _of_the_loss(key) else key: value for key, value in metrics.items()}
        noted: dict[str, list[float]] = defaultdict(list)
        for batch in self._batches:
            for key, value in batch.items():
                noted[key].append(value)
        self._batches.clear()
        result.update(reduce_metrics(noted))
        return result | self._follow_entropy(result)

    def _follow_entropy(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """How entropy changed over the step before, and what was forecast; warns outside the band.

        To first order, an update of a softmax policy with step size eta changes entropy by ``-eta Cov(log pi, A)``
        (section 2.2 of the paper). With Adam, eta is not the learning rate, so the forecast tells sign and course
        rather than size. A log without an entropy or a covariance is passed over, and the first step has no forecast.
        """
        before = self._before
        try:
            now = Drift(
                entropy=metrics["actor/entropy"],
                covariance_before=metrics[f"{NAME}/covariance_before"],
                covariance_after=metrics[f"{NAME}/covariance_after"],
                learning_rate=before.next_learning_rate if before else None,
                next_learning_rate=metrics["actor/lr"],
            )
        except KeyError:
            return {}
        self._before = now
        self._watch(now, before or now)
        if before is None:
            return {}
        added = {f"{NAME}/entropy_change": now.entropy - before.entropy}
        if before.learning_rate is not None:
            added[f"{NAME}/entropy_forecast"] = -before.learning_rate * before.covariance_after
            added[f"{NAME}/entropy_forecast_grpo"] = -before.learning_rate * before.covariance_before
        return added

    def _watch(self, now: Drift, last: Drift) -> None:
        low, high = self.options.entropy_low, self.options.entropy_high
        what = None
        if low is not None and now.entropy < low:
            what = f"collapse: policy entropy {now.entropy:.4g} is below entropy_low={low}"
        elif high is not None and now.entropy > high:
            what = f"surge: policy entropy {now.entropy:.4g} is above entropy_high={high}"
        if what and not self._outside:
            logger.warning(
                "cw_grpo: entropy %s at step %d. Cov(log pi, A), which lowers entropy where it is positive, was %+.3g "
                "in the last step, and %+.3g after reweighting",
                what, self.step, last.covariance_before, last.covariance_after,
            )  # fmt: skip
        self._outside = what is not None

    def record(self, recorder: CovarianceRecorder, responses: Responses) -> None:
        """Write ``covariance/step_000050.parquet`` under the run's folder, and ``step_000050.tokens.parquet`` if asked.

        The first holds the bins of :meth:`CovarianceRecorder.bins`, the second the most extreme tokens with their text;
        the schema's metadata names step, scope and kernel. Where a step has several batches
        (``trainer_mode=separate_async``), the later ones are ``step_000050-2.parquet`` and so on. Write errors are
        logged, and training continues.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        step = self.step
        metadata = {"step": str(step), "scope": self.options.scope, "kernel": self.options.kernel}
        folder = Path(self.config.trainer.default_local_dir) / FOLDER
        last, number = self._recorded
        number = number + 1 if last == step else 1
        self._recorded = step, number
        name = f"step_{step:06d}" + (f"-{number}" if number > 1 else "")
        tables = {f"{name}.parquet": recorder.bins()}
        if self.options.record_tokens:
            tables[f"{name}.tokens.parquet"] = self._with_text(recorder.extremes(), responses)
        try:
            for file, columns in tables.items():
                table = pa.table(columns).replace_schema_metadata(metadata)
                write_whole(folder / file, functools.partial(pq.write_table, table, compression="zstd"))
        except OSError as error:
            logger.error("cw_grpo: the covariance of step %d is not recorded in %s: %s", step, folder, error)

    def _with_text(self, tokens: dict[str, Any], responses: Responses) -> dict[str, Any]:
        """Each token's text, and the text of its response up to there."""
        rows = sorted(set(tokens["row"].tolist()))
        if not rows:
            return {**tokens, "token": [], "context": []}
        ids = dict(zip(rows, responses(rows), strict=True))
        trainer: Any = self._trainer()  # it is computing advantages right now
        decode = trainer.tokenizer.decode
        places = list(zip(tokens["row"].tolist(), tokens["position"].tolist(), strict=True))
        return {
            **tokens,
            "token": [decode([ids[row][at]]) for row, at in places],
            "context": [decode(ids[row][max(0, at - 50) : at]) for row, at in places],
        }


def _of_the_loss(key: str) -> bool:
    return key.startswith(f"actor/{NAME}/")


_current: Run | None = None


def begin(trainer: Any) -> None:
    """Make ``trainer``'s the run of this process; there is one trainer in a process of verl."""
    global _current
    _current = Run(trainer)


def end() -> None:
    """There is no run, or one that does not use cw_grpo."""
    global _current
    _current = None


def current() -> Run | None:
    """The run of this process, if it uses cw_grpo."""
    return _current
