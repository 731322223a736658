"""What the hooks record besides metrics: the covariance distribution as files, and the entropy against its forecast."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from cw_plugin.covariance import CovarianceRecorder
from cw_plugin.files import write_whole
from cw_plugin.verl_integration import NAME
from cw_plugin.verl_integration.options import Options

# Beneath verl's own logger: in the trainer's process others set the root logger to errors only.
logger = logging.getLogger("verl.cw_plugin")

FOLDER = "covariance"  # within trainer.default_local_dir

_recorded: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()  # trainer -> last step, and how many batches


def is_due(step: int | None, every: int) -> bool:
    """Step 1 and every ``every``-th; never outside a trainer or for ``every`` 0."""
    return step is not None and every > 0 and (step == 1 or step % every == 0)


def write_record(trainer: Any, batch: Any, recorder: CovarianceRecorder) -> None:
    """Write ``covariance/step_000050.parquet`` under the run's folder, and ``step_000050.tokens.parquet`` if asked.

    The first holds the bins of :meth:`CovarianceRecorder.bins`, the second the most extreme tokens with their text; the
    schema's metadata names step, scope and kernel. Where a step has several batches (``trainer_mode=separate_async``),
    the later ones are ``step_000050-2.parquet`` and so on. A disk that refuses is said in the log, and training goes
    on.

    Args:
        trainer: verl's PPOTrainer.
        batch: the step's KVBatchMeta, whose rows the recorder has seen.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    options = Options.from_config(trainer.config.algorithm)
    step = trainer.global_steps
    metadata = {"step": str(step), "scope": options.scope, "kernel": options.kernel}
    folder = Path(trainer.config.trainer.default_local_dir) / FOLDER
    last, number = _recorded.get(trainer, (None, 0))
    number = number + 1 if last == step else 1
    _recorded[trainer] = step, number
    name = f"step_{step:06d}" + (f"-{number}" if number > 1 else "")
    tables = {f"{name}.parquet": recorder.bins()}
    if options.record_tokens:
        tables[f"{name}.tokens.parquet"] = _with_text(trainer, batch, recorder.extremes())
    try:
        for file, columns in tables.items():
            table = pa.table(columns).replace_schema_metadata(metadata)
            write_whole(folder / file, functools.partial(pq.write_table, table, compression="zstd"))
    except OSError as error:
        logger.error("cw_grpo: the covariance of step %d is not recorded in %s: %s", step, folder, error)


def _with_text(trainer: Any, batch: Any, tokens: dict[str, Any]) -> dict[str, Any]:
    """Each token's text, and the text of its response up to there."""
    import transfer_queue as tq

    rows = sorted(set(tokens["row"].tolist()))
    if not rows:
        return {**tokens, "token": [], "context": []}
    data = tq.kv_batch_get(
        keys=[batch.keys[row] for row in rows], partition_id=batch.partition_id, select_fields=["responses"]
    )
    responses = {row: ids.tolist() for row, ids in zip(rows, data["responses"].unbind(), strict=True)}
    decode = trainer.tokenizer.decode
    places = list(zip(tokens["row"].tolist(), tokens["position"].tolist(), strict=True))
    return {
        **tokens,
        "token": [decode([responses[row][at]]) for row, at in places],
        "context": [decode(responses[row][max(0, at - 50) : at]) for row, at in places],
    }


@dataclass
class _Drift:
    """Of one training step: the entropy before its update, what drives it, and whether it was warned of."""

    entropy: float
    covariance_before: float
    covariance_after: float
    learning_rate: float | None  # of its update, where the step before is known
    next_learning_rate: float  # verl logs it after the scheduler's step
    outside: bool = False


_previous: WeakKeyDictionary[Any, _Drift] = WeakKeyDictionary()


def follow_entropy(trainer: Any, metrics: dict[str, Any]) -> None:
    """Add to a step's metrics how entropy changed over the step before, and what was forecast; warn outside the band.

    To first order, an update of a softmax policy with step size eta changes entropy by ``-eta Cov(log pi, A)``
    (section 2.2 of the paper). With Adam, eta is not the learning rate, so that the forecast tells sign and course
    rather than size. Steps without an entropy or a covariance among the metrics are passed over, and the first step of
    a run has no forecast.
    """
    before = _previous.get(trainer)
    try:
        now = _Drift(
            entropy=metrics["actor/entropy"],
            covariance_before=metrics[f"{NAME}/covariance_before"],
            covariance_after=metrics[f"{NAME}/covariance_after"],
            learning_rate=before.next_learning_rate if before else None,
            next_learning_rate=metrics["actor/lr"],
        )
    except KeyError:
        return
    if before is not None:
        metrics[f"{NAME}/entropy_change"] = now.entropy - before.entropy
    if before is not None and before.learning_rate is not None:
        metrics[f"{NAME}/entropy_forecast"] = -before.learning_rate * before.covariance_after
        metrics[f"{NAME}/entropy_forecast_grpo"] = -before.learning_rate * before.covariance_before
    options = Options.from_config(trainer.config.algorithm)
    low, high = options.entropy_low, options.entropy_high
    what = None
    if low is not None and now.entropy < low:
        what = f"collapse: policy entropy {now.entropy:.4g} is below entropy_low={low}"
    elif high is not None and now.entropy > high:
        what = f"surge: policy entropy {now.entropy:.4g} is above entropy_high={high}"
    if what and not (before and before.outside):
        last = before or now
        logger.warning(
            "cw_grpo: entropy %s at step %d. Cov(log pi, A), which lowers entropy where it is positive, was %+.3g in "
            "the last step, and %+.3g after reweighting",
            what, trainer.global_steps, last.covariance_before, last.covariance_after,
        )  # fmt: skip
    now.outside = what is not None
    _previous[trainer] = now
