"""Turns datasets into checked parquet files in verl's schema."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

import cw_plugin
from cw_plugin.files import write_whole
from cw_plugin.lab.data import CHECKED_BY
from cw_plugin.lab.data.answers import final_answer
from cw_plugin.lab.data.leakage import contaminated
from cw_plugin.lab.data.load import Row, load
from cw_plugin.lab.data.prompts import Prompt
from cw_plugin.lab.data.row_checks import CONTAMINATED, NO_ANSWER, RowProblem, repeated, ungradable
from cw_plugin.lab.data.sources import Source
from cw_plugin.lab.errors import DataError

SHOWN = 10  # rows for each check on the terminal; the report beside the file has all, with the reasons


class CheckedFile(NamedTuple):
    """A dataset in verl's schema, and what the checks say of it."""

    path: Path
    table: pa.Table
    left_out: list[int]  # rows of the dataset, from 0
    findings: list[RowProblem]

    def report(self) -> str:
        """The JSON beside the file."""
        findings = [finding._asdict() for finding in self.findings]
        report = {"rows": self.table.num_rows, "left_out": self.left_out, "findings": findings}
        return json.dumps(report, indent=1, ensure_ascii=False) + "\n"

    def summary(self) -> str:
        """How many rows the file has, and which rows fail which check, for the terminal."""
        lines = [f"{self.path}: {self.table.num_rows} rows"]
        for check in dict.fromkeys(finding.check for finding in self.findings):  # in order, each once
            rows = sorted({finding.row for finding in self.findings if finding.check == check})
            happened = "left out" if set(rows) <= set(self.left_out) else "listed"
            shown = ", ".join(map(str, rows[:SHOWN]))
            more = f", ... ({len(rows)} rows)" if len(rows) > SHOWN else ""
            lines.append(f"  {happened}, {check}: row {shown}{more}")
        return "\n".join(lines)


def prepare(
    sources: Sequence[Source],
    save_dir: Path,
    prompt: Prompt,
    dataset_path: Path | None = None,
    drop: Collection[str] = (),
) -> list[Path]:
    """Load and check datasets, write a file and a report for each, and say on stderr what the checks say.

    Args:
        sources: the datasets. Training problems are compared with the benchmarks among them.
        save_dir: the folder for ``open_rs/train.parquet``, ``aime24/test.parquet``, ...
        prompt: the turns around a question.
        dataset_path: see :func:`cw_plugin.lab.data.load.load`.
        drop: checks; training rows that fail one of them are left out, as those without an answer always are.

    Returns:
        The files.

    Raises:
        DataError: something is missing or wrong. Then no file has been written. If writing a file fails, the files
            before it are complete, and that file is unchanged.
    """
    benchmarks_are_here = any(not source.training for source in sources)
    if CONTAMINATED in drop and not benchmarks_are_here:
        raise DataError("--drop-contaminated needs the benchmarks; leave it out, or prepare all")
    rows_of = {source.name: load(source, dataset_path) for source in sources}
    benchmarks = {
        source.name: [row[source.question] for row in rows_of[source.name]] for source in sources if not source.training
    }
    files = [_checked(source, rows_of[source.name], save_dir, prompt, benchmarks, drop) for source in sources]
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for file in files:
        _write(file)
        console.print(file.summary(), markup=False)
    if not benchmarks_are_here:
        console.print("not compared with the benchmarks, which cw-grpo prepare all does")
    return [file.path for file in files]


def _checked(
    source: Source,
    rows: Sequence[Row],
    save_dir: Path,
    prompt: Prompt,
    benchmarks: Mapping[str, Sequence[str]],
    drop: Collection[str],
) -> CheckedFile:
    """Check the rows of a dataset; of training data, leave out those that fail a check of ``drop``."""
    # verl's convention: the rows of a benchmark are in test.parquet, whatever the hub calls their split.
    path = save_dir / source.name.replace("-", "_") / ("train.parquet" if source.training else "test.parquet")
    problems = [row[source.question] for row in rows]
    answers = [final_answer(row[source.ground_truth], source.is_boxed) for row in rows]
    dropped = {NO_ANSWER, *drop} if source.training else set()
    findings = ungradable(answers)
    if source.training:
        findings += contaminated(problems, benchmarks)
    left_out = {finding.row for finding in findings if finding.check in dropped}
    findings += repeated(problems, answers, [row for row in range(len(rows)) if row not in left_out])
    left_out |= {finding.row for finding in findings if finding.check in dropped}
    kept = [row for row in range(len(rows)) if row not in left_out]
    if not kept:
        first = findings[0]
        raise DataError(f"{source.path} has no usable row (row {first.row}: {first.reason}); correct the data")
    table = _table(source, rows, answers, prompt).take(kept)
    return CheckedFile(path, table, sorted(left_out), sorted(findings))


def _write(file: CheckedFile) -> None:
    try:
        write_whole(file.path.with_suffix(".report.json"), file.report())
        write_whole(file.path, partial(pq.write_table, file.table))
    except OSError as error:
        raise DataError(f"{file.path} cannot be written ({error}); free space, or change --local-save-dir") from error


def _table(source: Source, rows: Sequence[Row], answers: Sequence[str], prompt: Prompt) -> pa.Table:
    """All rows in verl's schema; the metadata says that math-verify has read their ground truths."""
    in_verls_schema = [
        {
            "data_source": source.path,
            "prompt": prompt.messages(row[source.question]),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": source.split, "index": index},
        }
        for index, (row, answer) in enumerate(zip(rows, answers, strict=True))
    ]
    return pa.Table.from_pylist(in_verls_schema, metadata={CHECKED_BY: cw_plugin.__version__})
