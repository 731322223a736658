"""Turns datasets into checked parquet files in verl's schema."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track

import cw_plugin
from cw_plugin.files import write_whole
from cw_plugin.lab.data.answers import final_answer
from cw_plugin.lab.data.leakage import contaminated
from cw_plugin.lab.data.load import Row, load
from cw_plugin.lab.data.prompts import Prompt
from cw_plugin.lab.data.row_checks import CONTAMINATED, NO_ANSWER, REPEATED, RowProblem, repeated, ungradable
from cw_plugin.lab.data.sources import BENCHMARKS, Source
from cw_plugin.lab.errors import DataError

SHOWN = 10  # rows for each check on the terminal; the report beside the file has all, with the reasons

_STRING = pa.string()
_EXTRA = {"split": _STRING, "index": pa.int64(), "level": _STRING, "subject": _STRING, "unit": _STRING}
SCHEMA = pa.schema(
    {
        "data_source": _STRING,
        "prompt": pa.list_(pa.struct({"role": _STRING, "content": _STRING})),
        "ability": _STRING,
        "reward_model": pa.struct({"style": _STRING, "ground_truth": _STRING}),
        "extra_info": pa.struct(_EXTRA),
    }
)


class CheckedFile(NamedTuple):
    """A dataset in verl's schema, and what the checks say of it."""

    path: Path
    table: pa.Table
    left_out: list[int]  # rows of the dataset, from 0
    findings: list[RowProblem]
    not_compared_with: Mapping[str, str] = {}  # benchmark -> why

    def report(self) -> str:
        """The JSON beside the file."""
        report = {
            "rows": self.table.num_rows,
            "left_out": self.left_out,
            "findings": [finding._asdict() for finding in self.findings],
            "not_compared_with": dict(self.not_compared_with),
        }
        return json.dumps(report, indent=1, ensure_ascii=False) + "\n"

    def summary(self) -> str:
        """How many rows the file has, and which rows fail which check, for the terminal."""
        lines = [f"{self.path}: {self.table.num_rows} rows"]
        by_check: dict[str, dict[int, None]] = {}
        for finding in self.findings:
            by_check.setdefault(finding.check, {})[finding.row] = None  # in order, each once
        for check, rows in by_check.items():
            happened = "left out" if rows.keys() <= set(self.left_out) else "listed"
            shown = ", ".join(map(str, list(rows)[:SHOWN]))
            more = f", ... ({len(rows)} rows)" if len(rows) > SHOWN else ""
            lines.append(f"  {happened}, {check}: row {shown}{more}")
        for name, why in self.not_compared_with.items():
            lines.append(f"  not compared with {name}: {why}")
        return "\n".join(lines)


def _problems(source: Source, loaded: dict[str, list[Row]], dataset_path: Path | None) -> list[str] | DataError:
    """The problems of a benchmark, which is read unless it is loaded; or why it cannot be read."""
    try:
        return [row[source.question] for row in loaded.get(source.name) or load(source, dataset_path)]
    except DataError as error:
        return error


def prepare(
    sources: Sequence[Source],
    save_dir: Path,
    prompt: Prompt,
    dataset_path: Path | None = None,
    revision: str | None = None,
    drop: Collection[str] = (),
) -> list[Path]:
    """Load and check datasets, write a file and a report for each, and say on stderr what the checks say.

    Args:
        sources: the datasets.
        save_dir: the folder for ``open_rs/train.parquet``, ``aime24/test.parquet``, ...
        prompt: the turns around a question.
        dataset_path, revision: see :func:`cw_plugin.lab.data.load.load`.
        drop: checks; training rows that fail one of them are left out, as those without an answer always are.

    Returns:
        The files.

    Raises:
        DataError: something is missing or wrong. Then no file has been written. If writing a file fails, the files
            before it are complete, and that file is unchanged.
    """
    if revision and len(sources) > 1:
        raise DataError(f"--revision {revision} needs a single dataset, not all; prepare them one by one")
    if revision and dataset_path is not None:
        raise DataError(f"--revision {revision} is of the hub, and --local-dataset-path a copy; leave one of them out")
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    loaded = {source.name: load(source, dataset_path, revision) for source in sources}
    has_training = any(source.training for source in sources)
    benchmarks = {source.name: _problems(source, loaded, dataset_path) for source in BENCHMARKS if has_training}
    problems = {name: found for name, found in benchmarks.items() if isinstance(found, list)}
    unread = {name: str(found) for name, found in benchmarks.items() if isinstance(found, DataError)}
    if unread and CONTAMINATED in drop:
        names, why = ", ".join(unread), "; ".join(unread.values())
        raise DataError(f"--drop-contaminated needs the benchmarks; leave it out, or make {names} readable: {why}")

    files = []
    for source in sources:
        # verl's convention: the rows of a benchmark are in test.parquet, whatever the hub calls their split.
        path = save_dir / source.name.replace("-", "_") / ("train.parquet" if source.training else "test.parquet")
        file = _checked(source, loaded[source.name], path, prompt, problems if source.training else {}, drop, console)
        files.append(file._replace(not_compared_with=unread if source.training else {}))
    for file in files:
        _write(file)
        console.print(file.summary(), markup=False)
    return [file.path for file in files]


def _checked(
    source: Source,
    rows: Sequence[Row],
    path: Path,
    prompt: Prompt,
    benchmarks: Mapping[str, Sequence[str]],
    drop: Collection[str],
    console: Console,
) -> CheckedFile:
    """Check the rows of a dataset, and leave out those that fail a check of ``drop``."""
    problems = [row[source.question] for row in rows]
    answers = [final_answer(row[source.ground_truth], source.is_boxed) for row in rows]
    show = partial(track, description=f"{source.name}: checking answers", total=len(answers), console=console)
    findings = ungradable(answers, show) + contaminated(problems, benchmarks)
    leaves_out = (NO_ANSWER, *drop) if source.training else ()
    left_out = {finding.row for finding in findings if finding.check in leaves_out}
    repeats = repeated(problems, answers, [row for row in range(len(rows)) if row not in left_out])
    findings += repeats
    if REPEATED in leaves_out:
        left_out |= {finding.row for finding in repeats}
    kept = [row for row in range(len(rows)) if row not in left_out]
    if not kept:
        reasons = ", ".join(sorted({finding.check for finding in findings if finding.check in leaves_out}))
        raise DataError(f"{source.path} has no row that can be used (each has one of: {reasons}); correct the data")
    return CheckedFile(
        path=path,
        table=_table(source, rows, answers, prompt).take(kept),
        left_out=sorted(left_out),
        findings=sorted(findings),
    )


def _write(file: CheckedFile) -> None:
    try:
        write_whole(file.path.with_suffix(".report.json"), file.report())
        write_whole(file.path, partial(pq.write_table, file.table))
    except OSError as error:
        raise DataError(f"{file.path} cannot be written ({error}); free space, or change --local-save-dir") from error


def _table(source: Source, rows: Sequence[Row], answers: Sequence[str], prompt: Prompt) -> pa.Table:
    """All rows in verl's schema, with metadata that says where they come from."""
    in_verls_schema = [
        {
            "data_source": source.path,
            "prompt": prompt.messages(row[source.question]),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {
                "split": source.split,
                "index": index,
                "level": _text(row, source.level),
                "subject": _text(row, source.subject),
                "unit": _text(row, source.unit),
            },
        }
        for index, (row, answer) in enumerate(zip(rows, answers, strict=True))
    ]
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()
    metadata = {
        "cw_plugin.version": cw_plugin.__version__,
        "cw_plugin.source": source.path,
        "cw_plugin.revision": f"sha256:{digest}",
        "cw_plugin.prompt_sha256": prompt.sha256,
    }
    return pa.Table.from_pylist(in_verls_schema, schema=SCHEMA.with_metadata(metadata))


def _text(row: Row, column: str | None) -> str | None:
    """The value of a column as text; None if there is no such column, or it is empty."""
    value = row[column] if column else None
    return None if value is None else str(value)
