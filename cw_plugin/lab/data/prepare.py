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

    def write(self) -> None:
        """Write it, and beside it a report that has every finding."""
        findings = [finding._asdict() for finding in self.findings]
        report = {"rows": self.table.num_rows, "left_out": self.left_out, "findings": findings}
        try:
            report_file = self.path.with_suffix(".report.json")
            write_whole(report_file, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
            write_whole(self.path, partial(pq.write_table, self.table))
        except OSError as error:
            fix = "free space, or change --local-save-dir"
            raise DataError(f"{self.path} cannot be written ({error}); {fix}") from error


def prepare(
    sources: Sequence[Source],
    save_dir: Path,
    prompt: Sequence[dict[str, str]],
    dataset_path: Path | None = None,
    drop: Collection[str] = (),
) -> list[Path]:
    """Load and check datasets, write a file and a report for each, and say on stderr what the checks say.

    Args:
        sources: the datasets. Training problems are compared with the benchmarks among them.
        save_dir: the folder for ``open_rs/train.parquet``, ``aime24/test.parquet``, ...
        prompt: the chat turns, with ``{question}`` as the place of the question.
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
    rows_of = {source: load(source, dataset_path) for source in sources}
    benchmarks = {
        source.name: [row[source.question] for row in rows] for source, rows in rows_of.items() if not source.training
    }
    files = [_checked(source, rows, save_dir, prompt, benchmarks, drop) for source, rows in rows_of.items()]
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for file in files:
        file.write()
        console.print(file.summary(), markup=False)
    if not benchmarks_are_here:
        console.print("not compared with the benchmarks, which cw-grpo prepare all does")
    return [file.path for file in files]


def _checked(
    source: Source,
    rows: Sequence[Row],
    save_dir: Path,
    prompt: Sequence[dict[str, str]],
    benchmarks: Mapping[str, Sequence[str]],
    drop: Collection[str],
) -> CheckedFile:
    """Check the rows of a dataset; of training data, leave out those that fail a check of ``drop``."""
    # verl's convention: the rows of a benchmark are in test.parquet, whatever the hub calls their split.
    path = save_dir / source.name.replace("-", "_") / ("train.parquet" if source.training else "test.parquet")
    problems = [row[source.question] for row in rows]
    answers = [final_answer(row[source.ground_truth], source.is_boxed) for row in rows]
    dropped = {NO_ANSWER, *drop} if source.training else set()
    findings = ungradable(answers) + contaminated(problems, benchmarks if source.training else {})
    left_out = {finding.row for finding in findings if finding.check in dropped}
    findings += repeated(problems, answers, [row for row in range(len(rows)) if row not in left_out])
    left_out |= {finding.row for finding in findings if finding.check in dropped}
    kept = [row for row in range(len(rows)) if row not in left_out]
    if not kept:
        first = findings[0]
        raise DataError(f"{source.path} has no usable row (row {first.row}: {first.reason}); correct the data")
    in_verls_schema = [
        {
            "data_source": source.path,
            "prompt": [turn | {"content": turn["content"].replace("{question}", problems[row])} for turn in prompt],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answers[row]},
            "extra_info": {"split": source.split, "index": row},
        }
        for row in kept
    ]
    # The metadata says that math-verify has read the ground truths.
    table = pa.Table.from_pylist(in_verls_schema, metadata={CHECKED_BY: cw_plugin.__version__})
    return CheckedFile(path, table, sorted(left_out), sorted(findings))
