"""What a run records besides its logs, on every host: tokens of some steps, with what the weights did to them."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cw_plugin.files import write_whole
from cw_plugin.weights import token_weights

FOLDER = "tokens"  # within the run's folder
LIMIT = 2**18  # tokens in a record at most, unless its first prompt group alone has more


@dataclass(frozen=True)
class Batch:
    """One batch of responses, as a trainer has it when it computes advantages.

    Attributes:
        log_probs, response_mask: as in :func:`cw_plugin.weights.reweight`.
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

    If a step has several batches, the files of the later ones are ``step_000050-2.parquet`` and so on. A record is not
    worth a run of days: whatever goes wrong is logged, and training continues.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path, scope: str, kernel: str, logger: logging.Logger) -> None:
        self._folder = run / FOLDER
        self._scope, self._kernel = scope, kernel
        self._logger = logger
        self._last: tuple[int, int] = (0, 0)  # the last step recorded, and how many of its batches
        self._text: dict[int, str] = {}  # of each token id that was seen
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._jobs: list[Future[None]] = []

    def write(self, step: int, batch: Batch, tokenizer: Any) -> None:
        """Copy what the record needs; another thread writes it, so that training goes on.

        Args:
            tokenizer: of transformers.
        """
        last, number = self._last
        number = number + 1 if last == step else 1
        self._last = step, number
        path = self._folder / (f"step_{step:06d}" + (f"-{number}" if number > 1 else "") + ".parquet")
        group, sizes = batch.group.cpu(), (batch.response_mask != 0).sum(-1).cpu()
        if not sizes.any():
            return
        metadata = {
            "step": str(step),
            "scope": self._scope,
            "kernel": self._kernel,
            "groups": str(len(group[sizes > 0].unique())),
            "tokens": str(int(sizes.sum())),
        }
        drawn = torch.isin(group, _drawn(group, sizes, step))
        rows = group.argsort(stable=True)
        if self._scope == "group":  # else the statistics run over all rows
            rows = rows[drawn[rows]]

        def copied(values: Tensor) -> Tensor:  # the trainer may change its own
            return values[rows.to(values.device)].cpu()

        with self._errors_logged(path):
            chosen = rows[drawn[rows]].tolist()
            of_row = {
                row: (prompt.cpu().clone(), response.cpu().clone())
                for row, (prompt, response) in zip(chosen, batch.sequences(chosen), strict=True)
            }
            copy = Batch(
                copied(batch.log_probs),
                copied(batch.advantages),
                copied(batch.response_mask),
                group[rows],
                copied(batch.rewards),
                lambda wanted: [of_row[row] for row in wanted],
            )
            job = self._writer.submit(self._write, path, metadata, copy, rows, drawn[rows], tokenizer)
            self._jobs.append(job)

    def finish(self) -> None:
        """Wait until all records are on disk."""
        while self._jobs:
            self._jobs.pop(0).result()

    @contextmanager
    def _errors_logged(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._logger.error("cw_grpo: %s cannot be written: %s", path, error)
        except Exception:
            self._logger.exception("cw_grpo: %s cannot be written", path)

    def _write(
        self,
        path: Path,
        metadata: dict[str, str],
        batch: Batch,
        rows: Int[Tensor, " rows"],
        drawn: Bool[Tensor, " rows"],
        tokenizer: Any,
    ) -> None:
        """Write one record of ``batch``, whose rows are sorted by group.

        Args:
            rows: the rows' numbers in the trainer's batch.
            drawn: which of them to record; ``batch.sequences`` knows no others.
        """
        import pyarrow.parquet as pq

        with self._errors_logged(path):
            table = self._table(batch, rows, drawn, tokenizer, metadata)
            repeated = ["group", "row", "advantage", "reward", "text"]
            options = {"compression": "zstd", "use_dictionary": repeated, "use_byte_stream_split": list(_FLOATS)}
            write_whole(path, functools.partial(pq.write_table, table, **options))

    def _table(
        self,
        batch: Batch,
        rows: Int[Tensor, " rows"],
        drawn: Bool[Tensor, " rows"],
        tokenizer: Any,
        metadata: dict[str, str],
    ) -> Any:
        import pyarrow as pa

        every_valid = batch.response_mask != 0
        counts = batch.group.unique_consecutive(return_counts=True)[1].tolist()
        c, w, weight = (torch.zeros(every_valid.shape, dtype=batch.log_probs.dtype) for _ in range(3))
        start = 0
        for count in counts if self._scope == "group" else [len(rows)]:
            part = slice(start, start := start + count)
            of_part = every_valid[part]
            if of_part.any():
                x, a = batch.log_probs[part], batch.advantages[part, None].expand_as(of_part)
                found = token_weights(x[of_part], a[of_part], self._kernel)
                for values, target in zip((found.c, found.gaussian, found.weight), (c, w, weight), strict=True):
                    target[part][of_part] = values
        valid = every_valid & drawn[:, None]
        at, position = valid.nonzero(as_tuple=True)
        sequences = batch.sequences(rows[drawn].tolist())
        ids = torch.cat([ids[mask.nonzero()[:, 0]] for (_, ids), mask in zip(sequences, valid[drawn], strict=True)])
        known, at_known = np.unique(ids.numpy(), return_inverse=True)
        if new := [token for token in known.tolist() if token not in self._text]:
            self._text |= zip(new, tokenizer.batch_decode([[token] for token in new]), strict=True)
        of_group = dict(zip(batch.group[drawn].tolist(), (prompt for prompt, _ in sequences), strict=True))
        prompts = {
            group: tokenizer.decode(prompt.tolist(), skip_special_tokens=True) for group, prompt in of_group.items()
        }
        columns = {
            "group": batch.group[at].int(),
            "row": rows[at].int(),
            "position": position.int(),
            "token_id": ids.int(),
            "log_prob": batch.log_probs[valid].float(),
            "advantage": batch.advantages[at].float(),
            "covariance": c[valid].float(),
            "kernel": w[valid].float(),
            "weight": weight[valid].float(),
            "reward": batch.rewards[at].float(),
        }
        arrays = {name: pa.array(values.numpy()) for name, values in columns.items()}
        texts = pa.array([self._text[token] for token in known.tolist()], pa.string())
        arrays["text"] = pa.DictionaryArray.from_arrays(pa.array(at_known.astype(np.int32)), texts)
        return pa.table(arrays).replace_schema_metadata({**metadata, "prompts": json.dumps(prompts)})


_FLOATS = ("log_prob", "covariance", "kernel", "weight")  # their bytes compress better when sorted by significance


def _drawn(group: Int[Tensor, " rows"], sizes: Int[Tensor, " rows"], step: int) -> Int[Tensor, " groups"]:
    """The groups to record, in random order."""
    of_group = torch.zeros(int(group.max()) + 1, dtype=sizes.dtype).index_add_(0, group, sizes).numpy()
    order = np.random.default_rng(step).permutation(np.flatnonzero(of_group))
    fits = max(1, int((np.cumsum(of_group[order]) <= LIMIT).sum()))
    return torch.from_numpy(order[:fits])
