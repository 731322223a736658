"""Turns datasets into checked parquet files in verl's schema."""

import hashlib
import json
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track

import cw_plugin
from cw_plugin.data.answers import final_answer
from cw_plugin.data.leakage import contaminated
from cw_plugin.data.load import load
from cw_plugin.data.prompts import Prompt
from cw_plugin.data.row_checks import CONTAMINATED, NO_ANSWER, repeated, ungradable
from cw_plugin.data.sources import BENCHMARKS, Source
from cw_plugin.errors import DataError
from cw_plugin.files import write_whole

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


def prepare(
    sources: Sequence[Source],
    save_dir: Path,
    prompt: Prompt,
    dataset_path: Path | None = None,
    revision: str | None = None,
    drop: Collection[str] = (),
) -> list[Path]:
    """Load and check all of ``sources``, write a file and a report for each, and say on stderr what was found.

    Args:
        save_dir: the folder for ``open_rs/train.parquet``, ``aime24/test.parquet``, ...
        prompt: the turns around a question.
        dataset_path, revision: see :func:`cw_plugin.data.load.load`.
        drop: checks; training rows that fail one of them are left out, as those without an answer always are.

    Returns:
        The files.

    Raises:
        DataError: something is missing or wrong. Then no file has been written. If writing a file fails, the files
            before it are complete, and that file is unchanged.
    """
    if revision and len(sources) > 1:
        raise DataError(f"--revision {revision} needs a single dataset, not all; prepare them one by one")
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    loaded = {source.name: load(source, dataset_path, revision) for source in sources}
    benchmarks: dict[str, list[str]] = {}
    unread: dict[str, str] = {}  # benchmark -> why
    for source in BENCHMARKS if any(source.training for source in sources) else ():
        try:
            rows = loaded.get(source.name) or load(source, dataset_path)
            benchmarks[source.name] = [row[source.question] for row in rows]
        except DataError as error:
            unread[source.name] = str(error)
    if unread and CONTAMINATED in drop:
        why = "; ".join(unread.values())
        names = ", ".join(unread)
        raise DataError(f"--drop-contaminated needs the benchmarks; leave it out, or make {names} readable: {why}")

    files = []
    for source in sources:
        # verl's convention: the rows of a benchmark are in test.parquet, whatever the hub calls their split.
        path = save_dir / source.name.replace("-", "_") / ("train.parquet" if source.training else "test.parquet")
        rows = loaded[source.name]
        problems = [row[source.question] for row in rows]
        answers = [final_answer(row[source.ground_truth], source.is_boxed) for row in rows]
        show = partial(track, description=f"{source.name}: checking answers", total=len(answers), console=console)
        findings = repeated(problems, answers) + ungradable(answers, show)
        left_out = set()
        if source.training:
            findings += contaminated(problems, benchmarks)
            left_out = {finding.row for finding in findings if finding.check in (NO_ANSWER, *drop)}
        table = _table(source, rows, answers, prompt).take([row for row in range(len(rows)) if row not in left_out])
        report = {
            "rows": table.num_rows,
            "left_out": sorted(left_out),
            "findings": [finding._asdict() for finding in sorted(findings)],
            "not_compared_with": unread if source.training else {},
        }
        files.append((path, table, report))
    for path, table, report in files:
        try:
            write_whole(path.with_suffix(".report.json"), json.dumps(report, indent=1, ensure_ascii=False) + "\n")
            write_whole(path, partial(pq.write_table, table))
        except OSError as error:
            raise DataError(f"{path} cannot be written ({error}); free space, or change --local-save-dir") from error
        console.print("\n".join(_summary(path, report)), markup=False)
    return [path for path, *_ in files]


def _table(source: Source, rows: Sequence[dict[str, Any]], answers: Sequence[str], prompt: Prompt) -> pa.Table:
    def text(row: dict[str, Any], column: str | None) -> str | None:
        value = row[column] if column else None
        return None if value is None else str(value)

    extra = {"level": source.level, "subject": source.subject, "unit": source.unit}
    in_verls_schema = [
        {
            "data_source": source.path,
            "prompt": prompt.messages(row[source.question]),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {
                "split": source.split,
                "index": index,
                **{name: text(row, column) for name, column in extra.items()},
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


def _summary(path: Path, report: dict[str, Any]) -> list[str]:
    """How many rows a file has, and which rows fail which check."""
    lines = [f"{path}: {report['rows']} rows"]
    by_check: dict[str, dict[int, None]] = {}
    for finding in report["findings"]:
        by_check.setdefault(finding["check"], {})[finding["row"]] = None
    for check, rows in by_check.items():
        what_happened = "left out" if rows.keys() <= set(report["left_out"]) else "listed"
        more = f", ... ({len(rows)} rows)" if len(rows) > SHOWN else ""
        lines.append(f"  {what_happened}, {check}: row {', '.join(map(str, [*rows][:SHOWN]))}{more}")
    return lines + [f"  not compared with {name}: {why}" for name, why in report["not_compared_with"].items()]
