"""Reads the token records of a run (``tokens/step_*.parquet``, written by write.py)."""

import json
import os
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.errors import DataError
from cw_plugin.files import files_in, in_order, refuse_several
from cw_plugin.records.columns import FOLDER, REAL_NUMBERS, TEXT, WHOLE_NUMBERS

PATTERN = f"{FOLDER}/step_*.parquet"
_TYPES = {
    **dict.fromkeys(WHOLE_NUMBERS, pa.int32()),
    TEXT: pa.string(),
    **dict.fromkeys(REAL_NUMBERS, pa.float32()),
}
_STEP = re.compile(r"step_(\d+)(-\d+)?\.parquet")  # -2 and on: later batches of the step


@dataclass(frozen=True)
class TokenRecord:
    """The recorded tokens of one batch: prompts by group, and a table with a row for each token, whose columns
    columns.py names. groups and tokens are those of the batch; the record may hold fewer.
    """

    step: int
    scope: str
    kernel: str
    groups: int
    tokens: int
    prompts: dict[int, str]
    table: pa.Table


def read_tokens(path: Path, steps: Container[int] | None = None) -> list[TokenRecord]:
    """The records below ``path`` in order; if given, only those of some steps. If there is no record, or records of
    several runs or damaged ones, a DataError."""
    if not os.path.exists(path):  # False also for a name that is too long
        raise DataError(f"{path} does not exist; give the folder of a run")
    found = {file: int(match[1]) for file in files_in(path, PATTERN) if (match := _STEP.fullmatch(file.name))}
    refuse_several(path, {file.parent for file in found})
    if not found:
        raise DataError(
            f"{path} holds no token record ({PATTERN}); train with adv_estimator=cw_grpo and "
            "+algorithm.cw_grpo.record_every=50, for plain GRPO with +algorithm.cw_grpo.kernel=none as well; in TRL "
            "with a CWGRPOTrainer and cw_record_every=50"
        )
    ordered = sorted(found, key=lambda file: in_order(file.with_suffix("")))  # -2 after the first, -10 after -9
    chosen = [file for file in ordered if steps is None or found[file] in steps]
    if not chosen:
        known = ", ".join(map(str, sorted(set(found.values()))))
        raise DataError(f"{path} has records of step {known}; --steps names none of them, so change it")
    return [_read(file) for file in chosen]


def _read(file: Path) -> TokenRecord:
    try:
        table = pq.read_table(file)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        prompts = json.loads(metadata["prompts"])
        return TokenRecord(
            step=int(metadata["step"]),
            scope=metadata["scope"],
            kernel=metadata["kernel"],
            groups=int(metadata["groups"]),
            tokens=int(metadata["tokens"]),
            prompts={int(group): str(text) for group, text in prompts.items()},
            table=table.select(list(_TYPES)).cast(pa.schema(_TYPES.items())),
        )
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{file} cannot be read as a token record ({reason}); remove it") from None


def tokens_of(records: list[TokenRecord]) -> pd.DataFrame:
    """Covariance c and weight of all their tokens."""
    return pa.concat_tables([record.table.select(["covariance", "weight"]) for record in records]).to_pandas()


def parse_steps(text: str) -> range:
    """``"50"`` is one step, ``"1:50"`` the first and the last; anything else is a DataError."""
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise DataError(f"--steps must be one step, as 50, or the first and the last one, as 1:50; got {text!r}")
    return range(int(found[1]), int(found[2] or found[1]) + 1)
