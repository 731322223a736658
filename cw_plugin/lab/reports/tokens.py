"""``cw-grpo tokens``: one self-contained page with every recorded token of a run, coloured by covariance or weight.

tokens.html is the page without its data, which are the records' values, bit for bit, in a block for each prompt group.
"""

import base64
import html
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Container, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from cw_plugin.files import write_whole
from cw_plugin.lab.arguments import split_name
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.reports.read_records import TokenRecord, read_tokens
from cw_plugin.records.columns import REAL_NUMBERS

_LISTED = 20  # extreme tokens listed for each sign of the covariance
_BEFORE, _AFTER = 16, 6  # how many tokens of context stand before and after them
_PAGE = Path(__file__).with_name("tokens.html")
_COLUMNS = {  # of a block
    **dict.fromkeys(("token_id", "row", "position"), "int32"),
    **dict.fromkeys(REAL_NUMBERS, "float32"),
}

Json = dict[str, object]  # of the page's index, which tokens.html reads


def write_token_page(run: str | Path, out: Path, steps: Container[int] | None = None) -> None:
    """Write the page of a run's token records, by default of all its steps.

    The run is ``FOLDER`` or ``NAME=FOLDER``. What :func:`.read_records.read_tokens` refuses, or an ``out`` that cannot
    be written, is a DataError.
    """
    if not out.name or out.is_dir():
        raise DataError(f"{out} is a folder; give a file with --out, such as {out / 'tokens.html'}")
    name, folder = split_name(run)
    records = read_tokens(folder, steps)
    try:
        write_page(name or folder.resolve().name, records, out)
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}); give another file with --out") from None


def write_page(name: str, records: Sequence[TokenRecord], out: Path) -> None:
    """Write the page of these records of the run that is called ``name``."""
    text: dict[int, str] = {}
    blocks: list[str] = []
    shown: list[Json] = []
    batches: Counter[int] = Counter()  # of each step
    for record in records:
        batches[record.step] += 1
        batch = batches[record.step]
        label = f"step {record.step}" if batch == 1 else f"step {record.step}, batch {batch}"
        table = record.table.to_pandas()
        text.update(zip(table.token_id, table.text, strict=True))
        shown.append({"label": label, **_shown(record, table, first_block=len(blocks))})
        blocks += [_block(tokens) for _, tokens in table.groupby("group", sort=False)]
    scripts = [f'<script type="text/plain" id="block-{i}">{block}</script>' for i, block in enumerate(blocks)]
    index = {"records": shown, "text": text, "columns": list(_COLUMNS.items())}
    index_json = json.dumps(index, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    parts = {
        "@TITLE@": html.escape(f"Tokens of {name}"),
        "@INDEX@": index_json.replace("<", "\\u003c"),  # so it cannot end its script element
        "@FIRST@": "".join(scripts[:1]),  # before the page's script, which shows it while the rest is still being read
        "@REST@": "\n".join(scripts[1:]),
    }
    template = _PAGE.read_text(encoding="utf-8")
    write_whole(out, re.sub("@[A-Z]+@", lambda match: parts[match[0]], template))


def _block(tokens: pd.DataFrame) -> str:
    """The columns of the tokens of a prompt group."""
    values = b"".join(tokens[name].to_numpy(f"<{kind[0]}4").tobytes() for name, kind in _COLUMNS.items())
    return base64.b64encode(zlib.compress(values)).decode()


def _shown(record: TokenRecord, table: pd.DataFrame, first_block: int) -> Json:
    """What the page's index says of a record, whose prompt groups are in the blocks from this one on."""
    extreme = (table.gaussian < 0.5).groupby(table.group, sort=False).sum()
    prompts = [record.prompts.get(number, "") for number in extreme.index]
    shown: list[Json] = []
    for question, prompt, tokens in zip(_questions(prompts), prompts, extreme, strict=True):
        block = f"block-{first_block + len(shown)}"
        shown.append({"block": block, "question": question, "prompt": prompt, "extreme": int(tokens)})
    return {
        "scope": record.scope,
        "weights": record.weights,
        "settings": [f"{name}={value}" for name, value in record.settings.items()],
        "groups": record.groups,
        "tokens": record.tokens,
        "tokens_held": len(table),
        "shown": shown,
        "extremes": {"positive": _extremes(table, 1), "negative": _extremes(table, -1)},
    }


def _extremes(table: pd.DataFrame, sign: int) -> list[Json]:
    """The tokens with the most extreme covariance of one sign, each with its context."""
    groups = table.groupby("group", sort=False)
    group, place_in_group = groups.ngroup(), groups.cumcount()
    responses = table.groupby(["group", "row"]).text
    c = sign * table.covariance
    extremes: list[Json] = []
    for i in c[np.isfinite(c) & (c > 0)].nlargest(_LISTED).index:
        token = table.loc[i]
        response = responses.get_group((token.group, token.row))
        extremes.append(
            {
                "place": [int(group[i]), int(place_in_group[i])],
                "at": f"prompt {group[i] + 1}, row {token.row}, position {token.position}",
                "covariance": float(token.covariance),
                "gaussian": float(np.nan_to_num(token.gaussian)),
                "weight": float(np.nan_to_num(token.weight)),
                "token": token.text,
                "before": "".join(response.loc[: i - 1].tail(_BEFORE)),
                "after": "".join(response.loc[i + 1 :].head(_AFTER)),
            }
        )
    return extremes


def _questions(prompts: list[str]) -> list[str]:
    """What tells prompts apart: their text without the words that all begin and end with, the template's."""
    words = [re.findall(r"\w+|\W", prompt) for prompt in prompts]
    if len(prompts) > 1:
        head = _common_beginning(words)
        tail = _common_beginning([prompt[head:][::-1] for prompt in words])
        words = [prompt[head : len(prompt) - tail] for prompt in words]
    return [" ".join("".join(prompt).split()) for prompt in words]


def _common_beginning(texts: Sequence[Sequence[str]]) -> int:
    """How many words all texts begin with."""
    return sum(1 for _ in itertools.takewhile(lambda words: len(set(words)) == 1, zip(*texts, strict=False)))
