"""Writes the token records of a run, on every host: tokens of some steps, with what the weights did to them."""

import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from cw_plugin.batch import Batch, Tokenizer
from cw_plugin.files import write_whole
from cw_plugin.options import Options
from cw_plugin.records.columns import FOLDER, REAL_NUMBERS, TEXT, WHOLE_NUMBERS
from cw_plugin.statistics import Sums
from cw_plugin.weights import Group, kernel

LIMIT = 2**18  # tokens in a record at most, unless its first prompt group alone has more


class TokenFiles:
    """Writes ``tokens/step_000050.parquet``: a row for each token of a step, with what the weights did to it.

    A step of up to :data:`LIMIT` tokens is written as a whole. Of a larger one, prompt groups are drawn at random, with
    the step as seed, until the next would exceed the limit. Groups are never cut. TRL and ms-swift draw from the groups
    of the main process, unless groups lie across processes.

    columns.py names the columns and the metadata.

    If a step has several batches, the files of the later ones are ``step_000050-2.parquet`` and so on. A record is not
    worth a run of days: whatever goes wrong is logged, and training continues.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path, options: Options, logger: logging.Logger) -> None:
        self._folder = run / FOLDER
        self._options = options
        self._logger = logger
        self._started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self._step = 0  # the last step recorded
        self._batches = 0  # how many of its batches

    def write(self, step: int, batch: Batch, sums: Sums) -> None:
        """Write the record of one batch.

        Args:
            step: of training, from 1.
            batch: on the CPU, with a mask of booleans, and its weights.
            sums: of the whole batch, of which these rows may be a part.
        """
        path = self._next_path(step)
        try:
            if batch.response_mask.any():
                self._write(path, step, batch, sums)
        except OSError as error:
            self._logger.error("cw_grpo: %s cannot be written, and is left out: %s", path, error)  # noqa: TRY400
        except Exception:
            self._logger.exception("cw_grpo: %s cannot be written, and is left out", path)

    def _next_path(self, step: int) -> Path:
        self._batches = self._batches + 1 if step == self._step else 1
        self._step = step
        number = "" if self._batches == 1 else f"-{self._batches}"
        return self._folder / f"step_{step:06d}{number}.parquet"

    def _write(self, path: Path, step: int, batch: Batch, sums: Sums) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        assert batch.read_sequences is not None and batch.tokenizer is not None  # else nothing is recorded
        sizes = batch.response_mask.sum(-1)
        rows = _recorded_rows(batch.group, sizes, step)
        sequences = list(batch.read_sequences(rows.tolist()))
        by_prompt = self._options.scope == "group"
        values = self._values(batch, rows)
        values["token_id"] = _token_ids(batch, rows, sequences)
        columns = {name: pa.array(values[name].int().numpy()) for name in WHOLE_NUMBERS}
        columns |= {name: pa.array(values[name].float().numpy()) for name in REAL_NUMBERS}
        columns[TEXT] = _spelt(values["token_id"], batch.tokenizer)
        metadata = {
            "step": str(step),
            "started": self._started,
            "scope": self._options.scope,
            "weights": self._options.weights,
            "settings": json.dumps(self._options.settings),
            "groups": str(int(sums.groups) if by_prompt else len(set(batch.group[sizes > 0].tolist()))),
            "tokens": str(int(sums.tokens)),
            "prompts": json.dumps(_prompts(batch, rows, sequences, batch.tokenizer)),
        }
        table = pa.table(columns).replace_schema_metadata(metadata)
        write_whole(
            path,
            lambda part: pq.write_table(
                table, part, compression="zstd", use_dictionary=_REPEATED, use_byte_stream_split=_DIFFERENT
            ),
        )

    def _values(self, batch: Batch, rows: Int[Tensor, " recorded"]) -> dict[str, Shaped[Tensor, " tokens"]]:
        """The numbers of each valid token of some rows, which are sorted by group, in their order.

        With scope "batch", covariances are those among the tokens of all rows, as they were for the weights.
        """
        assert batch.weights is not None  # the run has put them there
        group = batch.group[rows]
        rows_of_groups = [rows[group == number] for number in set(group.tolist())]
        rows_together = rows_of_groups if self._options.scope == "group" else [torch.arange(len(batch.group))]
        pieces: dict[str, list[Tensor]] = defaultdict(list)
        for together in rows_together:
            mask = batch.response_mask[together]
            place, column = mask.nonzero(as_tuple=True)
            row = together[place]
            log_prob, advantage = batch.log_probs[row, column].float(), batch.advantages[row]
            tokens = Group(log_prob, advantage, None, mask)
            values = {
                "group": batch.group[row],
                "row": row,
                "position": tokens.position,
                "log_prob": log_prob,
                "advantage": advantage,
                "covariance": tokens.c,
                "gaussian": kernel(tokens.z),
                "weight": batch.weights[row, column],
                "reward": batch.rewards[row],
            }
            is_recorded = torch.isin(row, rows)
            for name, value in values.items():
                pieces[name].append(value[is_recorded])
        in_order = torch.cat(pieces["group"]).argsort(stable=True)
        return {name: torch.cat(of_column)[in_order] for name, of_column in pieces.items()}


# How columns compress best: those whose values repeat with a dictionary, and floats that all differ with their bytes
# sorted by significance.
_REPEATED = ["group", "row", "advantage", "reward", TEXT]
_DIFFERENT = ["log_prob", "covariance", "gaussian", "weight"]


def _recorded_rows(group: Int[Tensor, " rows"], sizes: Int[Tensor, " rows"], step: int) -> Int[Tensor, " recorded"]:
    """The rows of the groups that fit into a record, sorted by group.

    Groups are drawn in random order, until the next one would exceed :data:`LIMIT`; the first is always taken.
    ``sizes`` says how many valid tokens each row has, and ``step`` is the seed.
    """
    tokens = torch.zeros(int(group.max()) + 1, dtype=sizes.dtype).index_add_(0, group, sizes).numpy()
    order = np.random.default_rng(step).permutation(np.flatnonzero(tokens))
    fitting = int((np.cumsum(tokens[order]) <= LIMIT).sum())
    drawn = torch.from_numpy(order[: max(1, fitting)])
    by_group = group.argsort(stable=True)
    return by_group[torch.isin(group[by_group], drawn)]


def _token_ids(
    batch: Batch, rows: Int[Tensor, " recorded"], sequences: Sequence[tuple[Tensor, Tensor]]
) -> Int[Tensor, " tokens"]:
    """The ids of the valid tokens of some rows."""
    ids = []
    for row, (_, response) in zip(rows.tolist(), sequences, strict=True):
        valid = batch.response_mask[row].nonzero()[:, 0]
        ids.append(response.cpu()[valid])
    return torch.cat(ids)


def _prompts(
    batch: Batch, rows: Int[Tensor, " recorded"], sequences: Sequence[tuple[Tensor, Tensor]], tokenizer: Tokenizer
) -> dict[int, str]:
    """The prompt of each group, as text."""
    prompts = [prompt for prompt, _ in sequences]
    by_group = dict(zip(batch.group[rows].tolist(), prompts, strict=True))
    return {group: tokenizer.decode(prompt.tolist(), skip_special_tokens=True) for group, prompt in by_group.items()}


def _spelt(token_ids: Int[Tensor, " tokens"], tokenizer: Tokenizer) -> object:
    """The text of each token, as an arrow column that holds each text once."""
    import pyarrow as pa

    vocabulary, indices = np.unique(token_ids.numpy(), return_inverse=True)
    texts = tokenizer.batch_decode([[token] for token in vocabulary.tolist()])
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32)), pa.array(texts, pa.string()))
