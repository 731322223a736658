"""Reads the token records of a run (``tokens/step_*.parquet``, written by recording.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.errors import ReportError
from cw_plugin.files import find
from cw_plugin.reports.distribution import Distribution, together
from cw_plugin.reports.runs import refuse_several

Records = dict[int, Distribution]  # step -> its tokens

_PATTERN = "tokens/step_*.parquet"
_STEP = re.compile(r"step_(\d+)(-\d+)?\.parquet")  # -2 and on: later batches of the step
_COLUMNS = {
    "group",
    "row",
    "position",
    "token_id",
    "text",
    "log_prob",
    "advantage",
    "covariance",
    "kernel",
    "weight",
    "reward",
}


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


def has_records(path: Path) -> bool:
    """Whether a run's folder holds token records."""
    return path.is_dir() and bool(find(path, _PATTERN))


def read_tokens(path: Path, steps: tuple[int, int] | None = None) -> list[TokenRecord]:
    """The records below ``path`` in order, of the steps from ``steps[0]`` to ``steps[1]`` if given.

    Raises:
        ReportError: there is no record, the records are of several runs, or one cannot be read.
    """
    return [_read(file) for files in _files(path, steps).values() for file in files]


def read_records(path: Path, steps: tuple[int, int] | None = None) -> Records:
    """How covariance is distributed at each recorded step. Arguments and errors as in :func:`read_tokens`."""
    return {
        step: together([_distribution(_read(file)) for file in files]) for step, files in _files(path, steps).items()
    }


def _files(path: Path, steps: tuple[int, int] | None) -> dict[int, list[Path]]:
    """Step -> its files."""
    if not path.exists():
        raise ReportError(f"{path} does not exist; give the folder of a run")
    files: dict[int, list[Path]] = {}
    for file in find(path, _PATTERN):
        if found := _STEP.fullmatch(file.name):
            files.setdefault(int(found[1]), []).append(file)
    for of_step in files.values():
        of_step.sort(key=lambda file: (len(file.name), file.name))  # -2 after the first batch, and -10 after -9
    refuse_several(path, {file.parent for of_step in files.values() for file in of_step})
    if not files and find(path, "covariance/step_*.parquet"):
        raise ReportError(f"{path} holds records of cw_plugin 0.1 (covariance/), which only that version reads")
    if not files:
        raise ReportError(
            f"{path} holds no token record ({_PATTERN}); train with adv_estimator=cw_grpo and "
            "+algorithm.cw_grpo.record_every=50, for plain GRPO with +algorithm.cw_grpo.kernel=none as well; in TRL "
            "with a CWGRPOTrainer and cw_record_every=50"
        )
    chosen = {step: files[step] for step in sorted(files) if steps is None or steps[0] <= step <= steps[1]}
    if not chosen:
        raise ReportError(f"{path} has records of step {', '.join(map(str, sorted(files)))}, none of them in --steps")
    return chosen


def _read(file: Path) -> TokenRecord:
    try:
        table = pq.read_table(file)
        of = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        if lacking := _COLUMNS - set(table.column_names):
            raise KeyError(", ".join(sorted(lacking)))
        prompts = {int(group): text for group, text in json.loads(of["prompts"]).items()}
        step, groups, tokens = (int(of[name]) for name in ("step", "groups", "tokens"))
        return TokenRecord(step, of["scope"], of["kernel"], groups, tokens, prompts, table)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise ReportError(f"{file} cannot be read as a token record ({error}); remove it") from None


def _distribution(record: TokenRecord) -> Distribution:
    covariance, weight = (record.table[name].to_numpy() for name in ("covariance", "weight"))
    return Distribution(covariance, weight, np.ones(len(covariance), np.int64))


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """``"50"`` as (50, 50), ``"1:50"`` as (1, 50).

    Raises:
        ReportError: anything else.
    """
    if text is None:
        return None
    first, _, last = text.partition(":")
    if not (first.isdigit() and (last or first).isdigit() and int(first) <= int(last or first)):
        raise ReportError(f"--steps must be one step, or the first and last as 1:50, got {text!r}")
    return int(first), int(last or first)


def all_tokens(runs: Sequence[Records]) -> Distribution:
    """All steps of all runs as one distribution."""
    return together([tokens for records in runs for tokens in records.values()])


def title(name: str, runs: Sequence[Records]) -> str:
    """A label for the result of :func:`all_tokens`."""
    steps = sorted({step for records in runs for step in records})
    seeds = f" of {len(runs)} runs" if len(runs) > 1 else ""
    return f"{name}, step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}{seeds}"
