"""``cw-grpo tokens``: one self-contained page with every recorded token of a run, coloured by covariance or weight.

tokens.html is the page without its data, which are the records' values, bit for bit, in a block for each prompt group.
"""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections import Counter
from collections.abc import Container
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cw_plugin.errors import DataError
from cw_plugin.files import write_whole
from cw_plugin.reports.records import TokenRecord, read_tokens
from cw_plugin.reports.runs import split_name

BIG = 50_000_000  # bytes; of a page that is larger, the command says so

_LISTED = 20  # extreme tokens listed for each sign of the covariance
_BEFORE, _AFTER = 16, 6  # how many tokens of context stand before and after them
_PAGE = Path(__file__).with_name("tokens.html")
# The columns of a block. "token" is a number in the page's vocabulary, which holds id and text.
_COLUMNS = {name: "int32" for name in ("token", "row", "position")} | {
    name: "float32" for name in ("log_prob", "advantage", "covariance", "kernel", "weight", "reward")
}


def write_token_page(run: str | Path, out: Path, steps: Container[int] | None = None) -> int:
    """Write the page of a run's token records.

    Args:
        run: the run's folder, or ``NAME=FOLDER``.
        out: the file.
        steps: only records of these steps.

    Returns:
        The page's size in bytes.

    Raises:
        DataError: the folder holds no token record, records of several runs or a damaged one; or ``out`` cannot be
            written.
    """
    name, folder = split_name(run)
    vocabulary: dict[tuple[int, str], int] = {}
    blocks: list[str] = []
    batches: Counter[int] = Counter()
    records = []
    for record in read_tokens(folder, steps):
        batches[record.step] += 1
        records.append(_embed(record, batches[record.step], vocabulary, blocks))
    index = {
        "records": records,
        "vocabulary": {"id": [number for number, _ in vocabulary], "text": [text for _, text in vocabulary]},
        "columns": list(_COLUMNS.items()),
    }
    parts = {
        "TITLE": html.escape(f"Tokens of {name or folder.resolve().name}"),
        "INDEX": json.dumps(index, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "FIRST": "".join(blocks[:1]),  # before the page's script, which shows it while the rest is still being read
        "REST": "\n".join(blocks[1:]),
    }
    page = re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _PAGE.read_text(encoding="utf-8"))
    try:
        write_whole(out, page)
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}); give another file with --out") from None
    return out.stat().st_size


def _embed(
    record: TokenRecord, batch: int, vocabulary: dict[tuple[int, str], int], blocks: list[str]
) -> dict[str, Any]:
    """What the page's index says of a record; its new tokens go to the vocabulary, its groups to the blocks.

    Args:
        batch: which one of its step's the record is, from 1.
    """
    columns = {name: record.table[name].to_numpy() for name in record.table.column_names if name != "text"}
    ids, first, inverse = np.unique(columns["token_id"], return_index=True, return_inverse=True)
    words = record.table["text"].take(pa.array(first)).to_pylist()
    known = [vocabulary.setdefault(word, len(vocabulary)) for word in zip(ids.tolist(), words, strict=True)]
    columns |= {"token": np.array(known, dtype=np.int32)[inverse]}

    group, c = columns["group"], columns["covariance"].astype(float)
    starts, ends = np.flatnonzero(np.diff(group, prepend=-1)), np.flatnonzero(np.diff(group, append=-1)) + 1
    prompts = [record.prompts.get(number, "") for number in group[starts].tolist()]
    shown: list[dict[str, Any]] = []
    for question, prompt, start, end in zip(_questions(prompts), prompts, starts, ends, strict=True):
        values = b"".join(columns[name][start:end].astype(f"<{kind[0]}4").tobytes() for name, kind in _COLUMNS.items())
        name, data = f"block-{len(blocks)}", base64.b64encode(zlib.compress(values)).decode()
        blocks.append(f'<script type="text/plain" id="{name}">{data}</script>')
        extreme = int((columns["kernel"][start:end] < 0.5).sum())
        shown.append({"block": name, "question": question, "prompt": prompt, "extreme": extreme})

    text = dict(zip(known, words, strict=True))
    place = np.searchsorted(starts, np.arange(len(group)), side="right") - 1

    def context(i: int, first: int, end: int) -> str:
        """Of the same response."""
        within = range(max(first, 0), min(end, len(group)))
        same = [k for k in within if (group[k], columns["row"][k]) == (group[i], columns["row"][i])]
        return "".join(text[int(columns["token"][k])] for k in same)

    def listed(i: int) -> dict[str, Any]:
        return {
            "place": [int(place[i]), int(i - starts[place[i]])],
            "token": text[int(columns["token"][i])],
            "at": f"prompt {place[i] + 1}, row {columns['row'][i]}, position {columns['position'][i]}",
            "covariance": c[i],
            "kernel": float(np.nan_to_num(columns["kernel"][i])),
            "before": context(i, i - _BEFORE, i),
            "after": context(i, i + 1, i + 1 + _AFTER),
        }

    extremes = {}
    for side, sign in (("positive", 1), ("negative", -1)):
        chosen = np.flatnonzero(np.isfinite(c) & (sign * c > 0))
        extremes[side] = [listed(int(i)) for i in chosen[np.argsort(-sign * c[chosen], kind="stable")][:_LISTED]]
    return {
        "label": f"step {record.step}" + (f", batch {batch}" if batch > 1 else ""),
        "scope": record.scope,
        "kernel": record.kernel,
        "groups": record.groups,
        "tokens": record.tokens,
        "tokens_held": len(group),
        "shown": shown,
        "extremes": extremes,
    }


def _questions(prompts: list[str]) -> list[str]:
    """What tells prompts apart: their text without the template that all begin and end with."""

    def shared(texts: list[str]) -> int:
        return sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False)))

    head = tail = 0
    if len(prompts) > 1:
        head = shared(prompts)
        tail = shared([prompt[head:][::-1] for prompt in prompts])
        while head and prompts[0][head - 1].isalnum():  # not within a word or a number
            head -= 1
        while tail and prompts[0][-tail].isalnum():
            tail -= 1
    return [" ".join(prompt[head : len(prompt) - tail].split()) for prompt in prompts]
