"""What a run records besides its logs, on every host: tokens of some steps, with what the weights did to them."""

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
from cw_plugin.options import Options
from cw_plugin.weights import token_weights

LOGGER = logging.getLogger("cw_plugin")
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
        groups, tokens: how many the whole batch has, if these rows are a part of it.
    """

    log_probs: Float[Tensor, "rows time"]
    advantages: Float[Tensor, " rows"]
    response_mask: Shaped[Tensor, "rows time"]
    group: Int[Tensor, " rows"]
    rewards: Float[Tensor, " rows"]
    sequences: Callable[[Sequence[int]], Iterable[tuple[Tensor, Tensor]]]
    groups: int | None = None
    tokens: int | None = None


class TokenFiles:
    """Writes ``tokens/step_000050.parquet``: a row for each token of a step, with what the weights did to it.

    A step of up to :data:`LIMIT` tokens is written as a whole. Of a larger one, prompt groups are drawn at random, with
    the step as seed, until the next would exceed the limit. Groups are never cut. TRL and ms-swift draw from the groups
    of the first process, unless groups lie across processes.

    Columns: ``group``, ``row`` and ``position`` in the batch; ``token_id`` and its ``text``; ``log_prob`` in nats; the
    ``advantage`` before the weights; ``covariance`` (c); ``kernel`` (the Gaussian w, also if the option kernel is
    none); ``weight`` (w~, as it was applied); ``reward`` of the response. The schema's metadata has step, scope and
    kernel, how many groups and tokens the batch had, and the prompts as JSON by group.

    If a step has several batches, the files of the later ones are ``step_000050-2.parquet`` and so on. A record is not
    worth a run of days: whatever goes wrong is logged, and training continues.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path, options: Options, logger: logging.Logger = LOGGER) -> None:
        self._folder, self._options, self._logger = run / FOLDER, options, logger
        self._last: tuple[int, int] = (0, 0)  # the last step recorded, and how many of its batches

    def write(self, step: int, batch: Batch, tokenizer: Any) -> None:
        """Write the record of one batch, whose tokens a tokenizer of transformers spells."""
        last, number = self._last
        number = number + 1 if last == step else 1
        self._last = step, number
        path = self._folder / (f"step_{step:06d}" + (f"-{number}" if number > 1 else "") + ".parquet")
        try:
            if (batch.response_mask != 0).any():
                self._write(path, step, batch, tokenizer)
        except OSError as error:
            self._logger.error("cw_grpo: %s cannot be written, and is left out: %s", path, error)
        except Exception:
            self._logger.exception("cw_grpo: %s cannot be written, and is left out", path)

    def _write(self, path: Path, step: int, batch: Batch, tokenizer: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        group, valid = batch.group.cpu(), batch.response_mask.cpu() != 0
        log_probs = batch.log_probs.cpu().float()
        advantages, rewards = batch.advantages.cpu(), batch.rewards.cpu()
        sizes = valid.sum(-1)
        drawn = torch.isin(group, _drawn(group, sizes, step))
        order = group.argsort(stable=True)
        rows = order[drawn[order]]
        parts = [order]  # the rows of which all tokens are reweighted together
        if self._options.scope == "group":
            parts = list(rows.split(group[rows].unique_consecutive(return_counts=True)[1].tolist()))
        pieces = []
        for part in parts:
            row, place = valid[part].nonzero(as_tuple=True)
            row = part[row]
            found = token_weights(log_probs[row, place], advantages[row], self._options.kernel)
            values = (row, place, found.c, found.gaussian, found.weight)
            pieces.append([value[drawn[row]] for value in values])
        row, place, c, w, weight = map(torch.cat, zip(*pieces, strict=True))

        sequences = list(batch.sequences(rows.tolist()))
        ids = torch.cat(
            [ids.cpu()[valid[row].nonzero()[:, 0]] for row, (_, ids) in zip(rows.tolist(), sequences, strict=True)]
        )
        known, at_known = np.unique(ids.numpy(), return_inverse=True)
        texts = pa.array(tokenizer.batch_decode([[token] for token in known.tolist()]), pa.string())
        prompt_ids = dict(zip(group[rows].tolist(), (prompt for prompt, _ in sequences), strict=True))
        prompts = {n: tokenizer.decode(part.tolist(), skip_special_tokens=True) for n, part in prompt_ids.items()}
        whole = {"group": group[row], "row": row, "position": place, "token_id": ids}
        real = {"log_prob": log_probs[row, place], "advantage": advantages[row], "covariance": c, "kernel": w}
        real |= {"weight": weight, "reward": rewards[row]}
        arrays = {name: pa.array(values.int().numpy()) for name, values in whole.items()}
        arrays |= {name: pa.array(values.float().numpy()) for name, values in real.items()}
        arrays["text"] = pa.DictionaryArray.from_arrays(pa.array(at_known.astype(np.int32)), texts)
        metadata = {
            "step": str(step),
            "scope": self._options.scope,
            "kernel": self._options.kernel,
            "groups": str(batch.groups or len(group[sizes > 0].unique())),
            "tokens": str(batch.tokens or int(sizes.sum())),
            "prompts": json.dumps(prompts),
        }
        table = pa.table(arrays).replace_schema_metadata(metadata)
        repeated = ["group", "row", "advantage", "reward", "text"]
        options = {"compression": "zstd", "use_dictionary": repeated, "use_byte_stream_split": list(_FLOATS)}
        write_whole(path, functools.partial(pq.write_table, table, **options))


_FLOATS = ("log_prob", "covariance", "kernel", "weight")  # their bytes compress better when sorted by significance


def _drawn(group: Int[Tensor, " rows"], sizes: Int[Tensor, " rows"], step: int) -> Int[Tensor, " groups"]:
    """The groups to record, in random order."""
    tokens = torch.zeros(int(group.max()) + 1, dtype=sizes.dtype).index_add_(0, group, sizes).numpy()
    order = np.random.default_rng(step).permutation(np.flatnonzero(tokens))
    fits = max(1, int((np.cumsum(tokens[order]) <= LIMIT).sum()))
    return torch.from_numpy(order[:fits])
