"""What a run records besides its logs, under verl and TRL: some of its tokens, and its entropy forecast."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from cw_plugin.files import write_whole
from cw_plugin.weights import token_weights

FOLDER = "tokens"  # within the run's folder
LIMIT = 2**18  # tokens in a record at most, unless its first prompt group alone has more


@dataclass(frozen=True)
class Batch:
    """One batch of responses, as a trainer has it when it computes advantages.

    Attributes:
        log_probs, response_mask: as in :func:`cw_plugin.weights.reweight_responses`.
        advantages, rewards: one per response; advantages are those before the weights.
        group: the number of each row's prompt group, from 0.
        sequences: returns the token ids of prompt and response for some rows; padding tokens may be in them.
    """

    log_probs: Float[Tensor, "rows time"]
    advantages: Float[Tensor, " rows"]
    response_mask: Shaped[Tensor, "rows time"]
    group: Int[Tensor, " rows"]
    rewards: Float[Tensor, " rows"]
    sequences: Callable[[Sequence[int]], Iterable[tuple[Tensor, Tensor]]]


class TokenFiles:
    """Writes ``tokens/step_000050.parquet``: a row for each token of a step, with what the weights did to it.

    A step of up to :data:`LIMIT` tokens is written as a whole. Of a larger one, prompt groups are drawn at random, with
    the step as seed, until the next would exceed the limit. Groups are never cut.

    Columns: ``group``, ``row`` and ``position`` in the batch; ``token_id`` and its ``text``; ``log_prob`` in nats; the
    ``advantage`` before the weights; ``covariance`` (c); ``kernel`` (the Gaussian w, also if the option kernel is
    none); ``weight`` (w~, as it was applied); ``reward`` of the response. The schema's metadata has step, scope and
    kernel, how many groups and tokens the batch had, and the prompts as JSON by group.

    If a step has several batches, the files of the later ones are ``step_000050-2.parquet`` and so on. Write errors are
    logged, and training continues.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path, scope: str, kernel: str, logger: logging.Logger) -> None:
        self._folder = run / FOLDER
        self._scope, self._kernel = scope, kernel
        self._logger = logger
        self._last: tuple[int, int] = (0, 0)  # the last step recorded, and how many of its batches
        self._text: dict[int, str] = {}  # of each token id that was seen

    def write(self, step: int, batch: Batch, tokenizer: Any) -> None:
        """``tokenizer`` is of transformers."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        last, number = self._last
        number = number + 1 if last == step else 1
        self._last = step, number
        path = self._folder / (f"step_{step:06d}" + (f"-{number}" if number > 1 else "") + ".parquet")
        columns, prompts = self._columns(batch, _drawn(batch, step), tokenizer)
        metadata = {
            "step": str(step),
            "scope": self._scope,
            "kernel": self._kernel,
            "groups": str(len(batch.group.unique())),
            "tokens": str(int((batch.response_mask != 0).sum())),
            "prompts": json.dumps(prompts),
        }
        table = pa.table(columns).replace_schema_metadata(metadata)
        try:
            write_whole(path, functools.partial(pq.write_table, table, compression="zstd"))
        except OSError as error:
            self._logger.error("cw_grpo: the tokens of step %d are not recorded in %s: %s", step, self._folder, error)

    def _columns(self, batch: Batch, groups: Sequence[int], tokenizer: Any) -> tuple[dict[str, Any], dict[int, str]]:
        """The columns of a record of these groups, and the text of their prompts."""
        import pyarrow as pa

        of_batch = _weights(batch, slice(None)) if self._scope == "batch" else None
        parts: dict[str, list[np.ndarray]] = {}
        prompts = {}
        for group in groups:
            rows = (batch.group == group).nonzero()[:, 0]
            if of_batch is None:
                covariance, kernel, weight = _weights(batch, rows)
            else:
                covariance, kernel, weight = (values[rows] for values in of_batch)
            valid = batch.response_mask[rows] != 0
            at, position = valid.nonzero(as_tuple=True)
            row = rows[at]
            sequences = list(batch.sequences(rows.tolist()))
            prompts[group] = tokenizer.decode(sequences[0][0].tolist(), skip_special_tokens=True)
            ids = [
                response.cpu()[where.nonzero()[:, 0]]
                for (_, response), where in zip(sequences, valid.cpu(), strict=True)
            ]
            values = {
                "group": batch.group[row].int(),
                "row": row.int(),
                "position": position.int(),
                "token_id": torch.cat(ids).int(),
                "log_prob": batch.log_probs[rows][valid].float(),
                "advantage": batch.advantages[row].float(),
                "covariance": covariance[valid].float(),
                "kernel": kernel[valid].float(),
                "weight": weight[valid].float() if self._kernel == "gaussian" else torch.ones(len(row)),
                "reward": batch.rewards[row].float(),
            }
            for name, value in values.items():
                parts.setdefault(name, []).append(value.cpu().numpy())
        columns: dict[str, Any] = {name: np.concatenate(several) for name, several in parts.items()}
        known, at_known = np.unique(columns["token_id"], return_inverse=True)
        if new := [int(token) for token in known if int(token) not in self._text]:
            self._text |= zip(new, tokenizer.batch_decode([[token] for token in new]), strict=True)
        texts = pa.array([self._text[int(token)] for token in known], pa.string())
        columns["text"] = pa.DictionaryArray.from_arrays(pa.array(at_known.astype(np.int32)), texts)
        return columns, prompts


def _drawn(batch: Batch, step: int) -> list[int]:
    """The groups to record: random ones, in the batch's order."""
    tokens = (batch.response_mask != 0).sum(-1).cpu()
    sizes = torch.zeros(len(tokens), dtype=tokens.dtype).index_add_(0, batch.group.cpu(), tokens).numpy()
    order = np.random.default_rng(step).permutation(np.flatnonzero(sizes))
    fits = max(1, int((np.cumsum(sizes[order]) <= LIMIT).sum()))
    return sorted(order[:fits].tolist())


def _weights(batch: Batch, rows: Any) -> tuple[Tensor, Tensor, Tensor]:
    """c, w and w~ of rows that are one group."""
    log_probs, mask = batch.log_probs[rows], batch.response_mask[rows]
    return token_weights(log_probs, batch.advantages[rows, None].expand_as(log_probs), mask)


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
