"""Reads the token records of a run: ``tokens/step_*.parquet``, which cw_plugin/records/write.py writes."""

import json
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.result_files import files_in, in_order, refuse_several, require_path
from cw_plugin.records.columns import FOLDER, REAL_NUMBERS, TEXT, WHOLE_NUMBERS

PATTERN = f"{FOLDER}/step_[0-9]*.parquet"  # step_000050-2.parquet: the second batch of step 50
_TYPES = {
    **dict.fromkeys(WHOLE_NUMBERS, pa.int32()),
    TEXT: pa.string(),
    **dict.fromkeys(REAL_NUMBERS, pa.float32()),
}


@dataclass(frozen=True)
class TokenRecord:
    """The recorded tokens of one batch."""

    step: int  # of training
    scope: str  # the option of this name, as the next
    weights: str
    settings: dict[str, object]  # of the weighting, by name, with their defaults
    groups: int  # that the batch has; the record may hold fewer
    tokens: int  # that the batch has
    prompts: dict[int, str]  # the text of each prompt, by group
    table: pa.Table  # a row for each token, with the columns that columns.py names
    started: str  # when the start of the run that wrote it began, in ISO 8601


def read_tokens(path: Path, steps: Container[int] | None = None) -> list[TokenRecord]:
    """Read the records of some steps, by default of all, in order, below the folder of a run.

    Those that a later start of the run has overtaken are left out. If there is no record, or records of several runs
    or damaged ones, it is a DataError.
    """
    require_path(path)
    files = sorted(files_in(path, PATTERN), key=lambda file: in_order(file.with_suffix("")))  # -2 after the first
    refuse_several(path, {file.parent for file in files})
    if not files:
        raise DataError(
            f"{path} holds no token record ({FOLDER}/step_*.parquet); train with adv_estimator=cw_grpo and "
            "+algorithm.cw_grpo.record_every=50, for plain GRPO with +algorithm.cw_grpo.weights=none as well; in TRL "
            "with a CWGRPOTrainer and cw_record_every=50; in ms-swift, OpenRLHF and SkyRL with CW_GRPO_RECORD_EVERY=50"
        )
    heads = {file: _read(file, columns=[]) for file in files}  # without tokens, which is fast
    step_of = {file: head.step for file, head in heads.items() if not _is_lost(head, heads.values())}
    chosen = [file for file, step in step_of.items() if steps is None or step in steps]
    if not chosen:
        known = ", ".join(map(str, sorted(set(step_of.values()))))
        raise DataError(f"{path} has records of step {known}; --steps names none of them, so change it")
    return [_read(file, list(_TYPES)) for file in chosen]


def _is_lost(record: TokenRecord, records: Iterable[TokenRecord]) -> bool:
    """Whether a record is of weights that were lost: a later start has recorded the same step, or an earlier one.

    A start writes over the files of the one before it, but not over those of batches or steps that it does not reach.
    """
    return any(other.started > record.started and other.step <= record.step for other in records)


def _read(file: Path, columns: Sequence[str]) -> TokenRecord:
    try:
        table = pq.read_table(file, columns=columns)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        prompts = json.loads(metadata["prompts"])
        return TokenRecord(
            step=int(metadata["step"]),
            scope=metadata["scope"],
            weights=metadata["weights"],
            settings=dict(json.loads(metadata.get("settings", "{}"))),
            groups=int(metadata["groups"]),
            tokens=int(metadata["tokens"]),
            prompts={int(group): str(text) for group, text in prompts.items()},
            table=table.cast(pa.schema([(name, _TYPES[name]) for name in columns])),
            started=metadata["started"],
        )
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{file} cannot be read as a token record ({reason}); remove it") from None


def tokens_of(records: list[TokenRecord]) -> pd.DataFrame:
    """Covariance c and weight of all tokens of some records."""
    return pa.concat_tables([record.table.select(["covariance", "weight"]) for record in records]).to_pandas()


def parse_steps(text: str) -> range:
    """Read ``50`` as one step, ``1:50`` as the first and the last; anything else is a DataError."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    steps = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not steps:
        raise DataError(f"--steps must be one step, as 50, or the first and the last one, as 1:50; got {text!r}")
    return steps
