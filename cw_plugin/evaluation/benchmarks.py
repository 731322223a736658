"""The questions: parquet files in verl's schema, as ``cw-grpo prepare`` writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.data.sources import SOURCES
from cw_plugin.errors import DataError, OptionsError, first_line
from cw_plugin.files import expanded

NAMES = [source.name for source in SOURCES.values() if not source.training]
_SPEC = re.compile(r"(?P<name>[\w.-]+)(@(?P<samples>[1-9]\d*))?(=(?P<path>.+))?")


@dataclass(frozen=True)
class Benchmark:
    """A file of questions: its name, answers to each question (None: as verl is configured), and rows."""

    name: str
    samples: int | None
    rows: list[dict[str, Any]]


def read_benchmarks(specs: Sequence[str], data_dir: Path) -> list[Benchmark]:
    """The benchmarks that ``specs`` name.

    Args:
        specs: each is ``NAME[@SAMPLES][=FILE]``. Without a file, NAME is one of the paper's five, in ``data_dir``.
        data_dir: the folder that ``cw-grpo prepare`` wrote.

    Raises:
        OptionsError: a spec cannot be used, or there is none.
        DataError: a file is missing, empty, or not in verl's schema.
    """
    found: dict[str, Benchmark] = {}
    for spec in specs or [""]:
        match = _SPEC.fullmatch(spec)
        if not match or match["name"] in found or not (match["path"] or match["name"] in NAMES):
            raise OptionsError(
                f"{spec!r} is no benchmark, or has the name of another; use {', '.join(NAMES)}, or NAME=FILE.parquet, "
                "and NAME@4 for four answers to each question."
            )
        name, file = match["name"], expanded(match["path"] or data_dir / match["name"] / "test.parquet")
        if not file.is_file():
            how = "check the path" if match["path"] else f"run cw-grpo prepare {name} --local_save_dir {data_dir}"
            raise DataError(f"{file} does not exist; {how}.")
        found[name] = Benchmark(name, int(match["samples"]) if match["samples"] else None, _rows(file))
    return list(found.values())


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file} is no parquet file ({first_line(error)}); write it again.") from None
    for number, row in enumerate(rows):
        try:
            turns = [turn["role"] + turn["content"] for turn in row["prompt"]]
            whole = turns and row["data_source"] and row["reward_model"]["ground_truth"] not in (None, "")
        except (KeyError, TypeError):
            whole = False
        if not whole:
            raise DataError(
                f"Row {number} of {file} lacks data_source, prompt (turns with role and content) or "
                "reward_model.ground_truth; write the file as cw-grpo prepare does."
            )
    if not rows:
        raise DataError(f"{file} has no rows; write it again.")
    return rows
