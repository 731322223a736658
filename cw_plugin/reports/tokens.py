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
from cw_plugin.files import split_name, write_whole
from cw_plugin.records.columns import REAL_NUMBERS
from cw_plugin.records.read import TokenRecord, read_tokens

BIG = 50_000_000  # bytes; of a page that is larger, the command says so

_LISTED = 20  # extreme tokens listed for each sign of the covariance
_BEFORE, _AFTER = 16, 6  # how many tokens of context stand before and after them
_PAGE = Path(__file__).with_name("tokens.html")
_COLUMNS = {  # of a block
    **dict.fromkeys(("token_id", "row", "position"), "int32"),
    **dict.fromkeys(REAL_NUMBERS, "float32"),
}


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
    table = record.table.to_pandas()
    groups = table.groupby("group", sort=False)
    prompts = [record.prompts.get(number, "") for number, _ in groups]
    shown = []
    for question, prompt, (_, tokens) in zip(_questions(prompts), prompts, groups, strict=True):
        values = b"".join(tokens[name].to_numpy(f"<{kind[0]}4").tobytes() for name, kind in _COLUMNS.items())
        data = base64.b64encode(zlib.compress(values)).decode()
        extreme = int((tokens.gaussian < 0.5).sum())
        shown.append({"block": f"block-{len(blocks)}", "question": question, "prompt": prompt, "extreme": extreme})
        blocks.append(f'<script type="text/plain" id="block-{len(blocks)}">{data}</script>')
    place, within = groups.ngroup(), groups.cumcount()
    responses = table.groupby(["group", "row"]).text

    def listed(i: int) -> dict[str, Any]:
        token, texts = table.loc[i], responses.get_group((table.group[i], table.row[i]))
        at = f"prompt {place[i] + 1}, row {token.row}, position {token.position}"
        c, w = float(np.nan_to_num(token.covariance)), float(np.nan_to_num(token.gaussian))
        return {"place": [int(place[i]), int(within[i])], "at": at, "covariance": c, "gaussian": w, "token": token.text,
                "before": "".join(texts.loc[: i - 1].tail(_BEFORE)),
                "after": "".join(texts.loc[i + 1 :].head(_AFTER))}  # fmt: skip

    extremes = {}
    for side, sign in (("positive", 1), ("negative", -1)):
        c = sign * table.covariance
        extremes[side] = [listed(i) for i in c[np.isfinite(c) & (c > 0)].nlargest(_LISTED).index]
    counts = {name: getattr(record, name) for name in ("scope", "kernel", "groups", "tokens")}
    return counts | {"tokens_held": len(table), "shown": shown, "extremes": extremes}


def _questions(prompts: list[str]) -> list[str]:
    """What tells prompts apart: their text without the words that all begin and end with, the template's."""
    words = [re.findall(r"\w+|\W", prompt) for prompt in prompts]
    if len(prompts) > 1:
        head = len(os.path.commonprefix(words))  # noqa: RUF071  by words
        tail = len(os.path.commonprefix([each[head:][::-1] for each in words]))  # noqa: RUF071
        words = [each[head : len(each) - tail] for each in words]
    return [" ".join("".join(each).split()) for each in words]
