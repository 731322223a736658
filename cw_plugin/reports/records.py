"""Reads the token records of a run (``tokens/step_*.parquet``, written by recording.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.errors import DataError
from cw_plugin.reports.metrics import files_in, refuse_several

PATTERN = "tokens/step_*.parquet"
_STEP = re.compile(r"step_(\d+)(-\d+)?\.parquet")  # -2 and on: later batches of the step
_SCHEMA = pa.schema(
    [
        *((name, pa.int32()) for name in ("group", "row", "position", "token_id")),
        ("text", pa.string()),
        *((name, pa.float32()) for name in ("log_prob", "advantage", "covariance", "kernel", "weight", "reward")),
    ]
)


@dataclass(frozen=True)
class TokenRecord:
    """The recorded tokens of one batch.

    Attributes:
        step, scope, kernel: of the run.
        groups, tokens: how many the batch had; the record may hold fewer.
        prompts: group -> text.
        table: a row for each token; columns as :class:`cw_plugin.recording.TokenFiles` says.
    """

    step: int
    scope: str
    kernel: str
    groups: int
    tokens: int
    prompts: dict[int, str]
    table: pa.Table


def read_tokens(path: Path, steps: Container[int] | None = None) -> list[TokenRecord]:
    """The records below ``path`` in order; if given, only those of some steps.

    Raises:
        DataError: there is no record, the records are of several runs, or one cannot be read.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; give the folder of a run")
    found = {file: match for file in files_in(path, PATTERN) if (match := _STEP.fullmatch(file.name))}
    # -2 after the first batch, and -10 after -9
    files = sorted(found, key=lambda file: (int(found[file][1]), len(file.name), file.name))
    refuse_several(path, {file.parent for file in files})
    if not files:
        raise DataError(
            f"{path} holds no token record ({PATTERN}); train with adv_estimator=cw_grpo and "
            "+algorithm.cw_grpo.record_every=50, for plain GRPO with +algorithm.cw_grpo.kernel=none as well; in TRL "
            "with a CWGRPOTrainer and cw_record_every=50"
        )
    chosen = [file for file in files if steps is None or int(found[file][1]) in steps]
    if not chosen:
        known = ", ".join(dict.fromkeys(str(int(found[file][1])) for file in files))
        raise DataError(f"{path} has records of step {known}, none of them in --steps")
    return [_read(file) for file in chosen]


def _read(file: Path) -> TokenRecord:
    try:
        table = pq.read_table(file)
        of = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        # What is there already is not copied: only the text's dictionary is taken apart.
        table = table.select(_SCHEMA.names).cast(_SCHEMA)
        prompts = {int(group): str(text) for group, text in json.loads(of["prompts"]).items()}
        step, groups, tokens = (int(of[name]) for name in ("step", "groups", "tokens"))
        return TokenRecord(step, of["scope"], of["kernel"], groups, tokens, prompts, table)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{file} cannot be read as a token record ({reason}); remove it") from None


def tokens_of(records: list[TokenRecord]) -> pd.DataFrame:
    """Covariance c and weight of all their tokens."""
    return pa.concat_tables([record.table.select(["covariance", "weight"]) for record in records]).to_pandas()


def parse_steps(text: str | None) -> range | None:
    """``"50"`` is one step, ``"1:50"`` the first and the last.

    Raises:
        DataError: anything else.
    """
    if text is None:
        return None
    first, _, last = text.partition(":")
    if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
        raise DataError(f"--steps must be one step, or the first and last as 1:50, got {text!r}")
    return range(int(first), int(last or first) + 1)
