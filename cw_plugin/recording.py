"""What a run records besides its logs, under verl and TRL: the covariance of its tokens, and its entropy forecast."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cw_plugin.covariance import CovarianceRecorder
from cw_plugin.files import write_whole

FOLDER = "covariance"  # within the run's folder

Responses = Callable[[Sequence[int]], Sequence[Sequence[int]]]  # token ids of the responses in some rows of a batch


class CovarianceFiles:
    """Writes ``covariance/step_000050.parquet``, and ``step_000050.tokens.parquet`` if tokens are asked for.

    The first file holds the bins of :meth:`CovarianceRecorder.bins`, the second the most extreme tokens with their
    text. The schema's metadata has step, scope and kernel. If a step has several batches, the files of the later ones
    are ``step_000050-2.parquet`` and so on. Write errors are logged, and training continues.

    Args:
        run: the run's folder.
        tokens: how many of the most extreme tokens to list in a record, for each sign of the covariance.
    """

    def __init__(self, run: Path, scope: str, kernel: str, tokens: int, logger: logging.Logger) -> None:
        self._folder = run / FOLDER
        self._metadata = {"scope": scope, "kernel": kernel}
        self._tokens = tokens
        self._logger = logger
        self._last: tuple[int, int] = (0, 0)  # the last step recorded, and how many of its batches

    def write(
        self, step: int, recorder: CovarianceRecorder, decode: Callable[[Sequence[int]], str], responses: Responses
    ) -> None:
        """Write what ``recorder`` has seen of one batch."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        last, number = self._last
        number = number + 1 if last == step else 1
        self._last = step, number
        name = f"step_{step:06d}" + (f"-{number}" if number > 1 else "")
        tables: dict[str, dict[str, Any]] = {f"{name}.parquet": recorder.bins()}
        if self._tokens:
            tables[f"{name}.tokens.parquet"] = _with_text(recorder.extremes(), decode, responses)
        try:
            for file, columns in tables.items():
                table = pa.table(columns).replace_schema_metadata({"step": str(step), **self._metadata})
                write_whole(self._folder / file, functools.partial(pq.write_table, table, compression="zstd"))
        except OSError as error:
            self._logger.error(
                "cw_grpo: the covariance of step %d is not recorded in %s: %s", step, self._folder, error
            )


def _with_text(tokens: dict[str, Any], decode: Callable[[Sequence[int]], str], responses: Responses) -> dict[str, Any]:
    """Each token's text, and the text of its response up to there."""
    rows = sorted(set(tokens["row"].tolist()))
    ids = dict(zip(rows, responses(rows), strict=True)) if rows else {}
    places = list(zip(tokens["row"].tolist(), tokens["position"].tolist(), strict=True))
    return {
        **tokens,
        "token": [decode([ids[row][at]]) for row, at in places],
        "context": [decode(ids[row][max(0, at - 50) : at]) for row, at in places],
    }


@dataclass(frozen=True)
class Drift:
    """The policy's entropy before an update, in nats, and what drives it: Cov(log pi, A) and Cov(log pi, w~ A)."""

    entropy: float
    covariance_before: float
    covariance_after: float


def entropy_metrics(before: Drift, now: Drift, eta: float | None) -> dict[str, float]:
    """How entropy changed from ``before`` to ``now``, and what was forecast.

    To first order, an update of a softmax policy with step size eta changes entropy by ``-eta Cov(log pi, A)`` (section
    2.2 of the paper). With Adam, eta is not the learning rate, so the forecast shows sign and trend rather than size.

    Args:
        eta: the learning rate of the update in between, times the number of updates; None if it is not known.
    """
    change = {"cw_grpo/entropy_change": now.entropy - before.entropy}
    if eta is None:
        return change
    return change | {
        "cw_grpo/entropy_forecast": -eta * before.covariance_after,
        "cw_grpo/entropy_forecast_grpo": -eta * before.covariance_before,
    }
