"""``cw-grpo tokens``: one self-contained page with every recorded token of a run, coloured by covariance or weight.

tokens.html is the page without its data, which are the records' values, bit for bit, in a block for each prompt group.
"""

import base64
import html
import json
import os
import re
import zlib
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np

from cw_plugin.errors import DataError
from cw_plugin.files import write_whole
from cw_plugin.reports.records import TokenRecord, read_tokens
from cw_plugin.reports.runs import split_name

BIG = 50_000_000  # bytes; of a page that is larger, the command says so

_LISTED = 20  # extreme tokens listed for each sign of the covariance
_BEFORE, _AFTER = 16, 6  # how many tokens of context stand before and after them
_PAGE = Path(__file__).with_name("tokens.html")
_REAL = ("log_prob", "advantage", "covariance", "kernel", "weight", "reward")
_COLUMNS = dict.fromkeys(("token_id", "row", "position"), "int32") | dict.fromkeys(_REAL, "float32")  # of a block


def write_token_page(run: str | Path, out: Path, steps: Container[int] | None = None) -> int:
    """Write the page of a run's token records (of these steps), and return its size in bytes. What read_tokens refuses,
    or an ``out`` that cannot be written, is a DataError."""
    name, folder = split_name(run)
    text: dict[int, str] = {}
    blocks: list[str] = []
    shown: list[dict[str, Any]] = []
    for record in read_tokens(folder, steps):
        batch = 1 + sum(each["step"] == record.step for each in shown)
        label = f"step {record.step}" + (f", batch {batch}" if batch > 1 else "")
        text.update(zip(record.table["token_id"].to_pylist(), record.table["text"].to_pylist(), strict=True))
        shown.append({"step": record.step, "label": label} | _shown(record, blocks))
    index = {"records": shown, "text": text, "columns": list(_COLUMNS.items())}
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


def _shown(record: TokenRecord, blocks: list[str]) -> dict[str, Any]:
    """What the page's index says of a record, whose prompt groups are added to the blocks."""
    columns = {name: record.table[name].to_numpy() for name in ("group", *_COLUMNS)}
    texts, count, group = record.table["text"].to_pylist(), len(record.table), columns["group"]
    starts, ends = np.flatnonzero(np.diff(group, prepend=-1)), np.flatnonzero(np.diff(group, append=-1)) + 1
    prompts = [record.prompts.get(number, "") for number in group[starts].tolist()]
    shown = []
    for question, prompt, start, end in zip(_questions(prompts), prompts, starts, ends, strict=True):
        values = b"".join(columns[name][start:end].astype(f"<{kind[0]}4").tobytes() for name, kind in _COLUMNS.items())
        data = base64.b64encode(zlib.compress(values)).decode()
        extreme = int((columns["kernel"][start:end] < 0.5).sum())
        shown.append({"block": f"block-{len(blocks)}", "question": question, "prompt": prompt, "extreme": extreme})
        blocks.append(f'<script type="text/plain" id="block-{len(blocks)}">{data}</script>')
    response = np.cumsum((np.diff(group, prepend=-1) != 0) | (np.diff(columns["row"], prepend=-1) != 0))

    def context(i: int, first: int, end: int) -> str:
        """Of the same response."""
        return "".join(texts[k] for k in range(max(first, 0), min(end, count)) if response[k] == response[i])

    def listed(i: int) -> dict[str, Any]:
        place = int(np.searchsorted(starts, i, side="right")) - 1
        at = f"prompt {place + 1}, row {columns['row'][i]}, position {columns['position'][i]}"
        c, w = (float(np.nan_to_num(columns[name][i])) for name in ("covariance", "kernel"))
        return {"place": [place, int(i - starts[place])], "at": at, "covariance": c, "kernel": w, "token": texts[i],
                "before": context(i, i - _BEFORE, i), "after": context(i, i + 1, i + 1 + _AFTER)}  # fmt: skip

    extremes = {}
    for side, sign in (("positive", 1), ("negative", -1)):
        c = sign * columns["covariance"]
        chosen = np.flatnonzero(np.isfinite(c) & (c > 0))
        extremes[side] = [listed(int(i)) for i in chosen[np.argsort(-c[chosen], kind="stable")][:_LISTED]]
    of_run = {name: getattr(record, name) for name in ("scope", "kernel", "groups", "tokens")}
    return of_run | {"tokens_held": count, "shown": shown, "extremes": extremes}


def _questions(prompts: list[str]) -> list[str]:
    """What tells prompts apart: their text without the template that all begin and end with, but with whole words."""
    if len(prompts) < 2:
        return [" ".join(prompt.split()) for prompt in prompts]
    first, head = prompts[0], len(os.path.commonprefix(prompts))  # noqa: RUF071  by characters
    tail = len(os.path.commonprefix([prompt[head:][::-1] for prompt in prompts]))  # noqa: RUF071
    while head and first[head - 1].isalnum():
        head -= 1
    while tail and first[-tail].isalnum():
        tail -= 1
    return [" ".join(prompt[head : len(prompt) - tail].split()) for prompt in prompts]
