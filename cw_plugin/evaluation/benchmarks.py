"""The questions: parquet files in verl's schema, as ``cw-grpo prepare`` writes them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.data.sources import SOURCES
from cw_plugin.errors import EvaluationError
from cw_plugin.files import expanded

NAMES = [source.name for source in SOURCES.values() if not source.training]
COLUMNS = ["data_source", "prompt", "reward_model"]
_SPEC = re.compile(r"(?P<name>[\w.-]+)(@(?P<n>\d+))?(=(?P<path>.+))?")


@dataclass(frozen=True, eq=False)
class Benchmark:
    """One file of questions.

    Attributes:
        name: the name of the file of its answers.
        n: samples per question.
        rows: data_source, prompt (chat turns) and reward_model of each question; its index is its position here.
        prompt_sha: the hash of the prompt, which ``cw-grpo prepare`` writes into the file; None in other files.
    """

    name: str
    n: int
    rows: list[dict[str, Any]]
    prompt_sha: str | None

    @property
    def sha(self) -> str:
        """A hash of all questions and their right answers."""
        return hashlib.sha256(json.dumps(self.rows, sort_keys=True).encode()).hexdigest()

    def problem(self, index: int) -> str:
        """The user turn of a question."""
        return str([turn["content"] for turn in self.rows[index]["prompt"] if turn["role"] == "user"][-1])

    def ground_truth(self, index: int) -> str:
        """The right answer to a question."""
        return str(self.rows[index]["reward_model"]["ground_truth"])


def read_benchmarks(specs: Sequence[str], data_dir: Path, n: int) -> list[Benchmark]:
    """The benchmarks that ``specs`` name.

    Args:
        specs: each is ``NAME[@SAMPLES][=FILE]``. Without a file, NAME is one of the paper's five, in ``data_dir``.
        data_dir: the folder that ``cw-grpo prepare`` wrote.
        n: samples per question of a spec without @SAMPLES.

    Raises:
        EvaluationError: there is no benchmark; one is unknown or given twice; a file is missing, empty or not in verl's
            schema; or the number of samples is below 1.
    """
    benchmarks: dict[str, Benchmark] = {}
    for spec in specs:
        match = _SPEC.fullmatch(spec)
        if match is None:
            raise EvaluationError(f"Cannot read the benchmark {spec!r}; write NAME, NAME@SAMPLES or NAME=FILE.parquet.")
        name, path = match["name"], match["path"]
        if path is None and name not in NAMES:
            raise EvaluationError(
                f"Unknown benchmark {name!r}; use {', '.join(NAMES)}, or give its file as {name}=FILE.parquet."
            )
        if name in benchmarks:
            raise EvaluationError(f"The benchmark name {name} is given twice; give each benchmark its own name.")
        samples = int(match["n"] or n)
        if samples < 1:
            raise EvaluationError(f"The samples per question of {name} must be at least 1, got {samples}.")
        file = expanded(path) if path else data_dir / name / "test.parquet"
        benchmarks[name] = _read(name, samples, file, prepared=path is None)
    if not benchmarks:
        raise EvaluationError(f"No benchmark is given; name some of {', '.join(NAMES)}.")
    return list(benchmarks.values())


def _read(name: str, n: int, file: Path, prepared: bool) -> Benchmark:
    if not file.is_file():
        how = f"cw-grpo prepare {name} --local_save_dir {file.parent.parent}"
        raise EvaluationError(f"{file} does not exist; {f'write it with: {how}' if prepared else 'check the path'}.")
    try:
        schema = pq.read_schema(file)
        missing = [column for column in COLUMNS if column not in schema.names]
        rows = [] if missing else pq.read_table(file, columns=COLUMNS).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise EvaluationError(
            f"{file} is not a parquet file ({error}); write it again with cw-grpo prepare."
        ) from error
    if missing:
        raise EvaluationError(f"{file} lacks the column(s) {', '.join(missing)}; write it again with cw-grpo prepare.")
    turns, answer = (schema.field(column).type for column in COLUMNS[1:])
    if not (pa.types.is_list(turns) or pa.types.is_large_list(turns)) or not pa.types.is_struct(turns.value_type):
        raise EvaluationError(
            f"The column prompt of {file} is of type {turns}, not a list of chat turns with role and content; write it "
            "again with cw-grpo prepare."
        )
    if not pa.types.is_struct(answer) or answer.get_field_index("ground_truth") < 0:
        raise EvaluationError(
            f"The column reward_model of {file} has no ground_truth; write it again with cw-grpo prepare."
        )
    if not rows:
        raise EvaluationError(f"{file} has no rows; write it again with cw-grpo prepare.")
    sha = (schema.metadata or {}).get(b"cw_plugin.prompt_sha256")
    return Benchmark(name, n, rows, sha.decode() if sha else None)
