"""Turns a dataset into checked parquet files in verl's schema."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import cw_plugin
from cw_plugin.data.answers import final_answer
from cw_plugin.data.checks import NO_ANSWER, Failure, duplicates, ungradable
from cw_plugin.data.leakage import Leak, find_leaks
from cw_plugin.data.load import Loaded, load
from cw_plugin.data.prompts import Prompt
from cw_plugin.data.sources import SOURCES, Source
from cw_plugin.errors import DataError
from cw_plugin.files import write_whole

SHOWN = 10  # findings of one file on the terminal; its report has all of them

_STRING = pa.string()
SCHEMA = pa.schema(
    [
        ("data_source", _STRING),
        ("prompt", pa.list_(pa.struct([("role", _STRING), ("content", _STRING)]))),
        ("ability", _STRING),
        ("reward_model", pa.struct([("style", _STRING), ("ground_truth", _STRING)])),
        (
            "extra_info",
            pa.struct(
                [("split", _STRING), ("index", pa.int64()), ("level", _STRING), ("subject", _STRING), ("unit", _STRING)]
            ),
        ),
    ]
)


@dataclass(frozen=True)
class PrepareOptions:
    """The options of the command line; see ``cw-grpo prepare --help``."""

    save_dir: Path
    prompt: Prompt
    dataset_path: Path | None = None
    revision: str | None = None
    drop_failing: bool = False
    drop_contaminated: bool = False


@dataclass
class Prepared:
    """One file before it is written, and what the checks found.

    Attributes:
        source: what it was made from.
        path: the parquet file; the findings go beside it as ``<name>.report.json``.
        table: its rows.
        failures: rows that fail a check, with their index in the source.
        leaks: training problems that are also in a benchmark.
        unchecked: benchmarks that could not be read for comparison -> why.
        dropped: rows left out.
    """

    source: Source
    path: Path
    table: pa.Table
    failures: list[Failure]
    leaks: list[Leak]
    unchecked: dict[str, str]
    dropped: list[int]


def prepare_files(sources: Sequence[Source], options: PrepareOptions) -> list[Path]:
    """``cw-grpo prepare``: prepare ``sources`` with a progress bar, say on stderr what was found, return the files."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        prepared = prepare(sources, options, progress)
    for item in prepared:
        for line in _summary(item):
            console.print(escape(line))
    return [item.path for item in prepared]


def prepare(sources: Sequence[Source], options: PrepareOptions, progress: Progress) -> list[Prepared]:
    """Load and check all of ``sources``, then write their files.

    Raises:
        DataError: something is missing or wrong. Then no file has been written. If writing a file fails, the files
            before it are complete, and that file is unchanged.
    """
    if options.revision and len(sources) > 1:
        raise DataError(f"--revision {options.revision} needs a single dataset, not all; prepare them one by one.")
    loaded: dict[str, Loaded] = {}
    prepared = [_prepare(source, options, loaded, progress) for source in sources]
    for item in prepared:
        _write(item)
    return prepared


def to_row(source: Source, index: int, record: dict[str, Any], ground_truth: str, prompt: Prompt) -> dict[str, Any]:
    """One row in verl's schema."""

    def text(column: str | None) -> str | None:
        value = record[column] if column else None
        return None if value is None else str(value)

    return {
        "data_source": source.path,
        "prompt": prompt.messages(record[source.question]),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {
            "split": source.split,
            "index": index,
            "level": text(source.level),
            "subject": text(source.subject),
            "unit": text(source.unit),
        },
    }


def _prepare(source: Source, options: PrepareOptions, cache: dict[str, Loaded], progress: Progress) -> Prepared:
    # verl's convention: the rows of a benchmark are in test.parquet, whatever the hub calls their split.
    path = options.save_dir / source.folder / ("train.parquet" if source.training else "test.parquet")
    step = progress.add_task(f"{source.name}: loading", total=None)
    loaded = _load(source, options.revision, options, cache)
    records = loaded.records
    problems = [record[source.question] for record in records]
    ground_truths = [final_answer(record[source.ground_truth], source.is_boxed) for record in records]
    progress.update(step, description=f"{source.name}: checking answers", total=len(ground_truths))

    def track(results: Iterable[float]) -> Iterable[float]:
        return progress.track(results, task_id=step)

    failures = duplicates(problems, ground_truths)
    failures += ungradable(ground_truths, "training" if source.training else "evaluation", track)
    failures.sort(key=lambda failure: failure.row)
    leaks, unchecked = _leaks(problems, options, cache, progress) if source.training else ([], {})

    dropped = {row for row, ground_truth in enumerate(ground_truths) if source.training and not ground_truth}
    if source.training and options.drop_failing:
        dropped |= {failure.row for failure in failures}
    if source.training and options.drop_contaminated:
        if unchecked:
            reasons = " ".join(unchecked.values())
            raise DataError(
                f"--drop-contaminated needs the benchmarks, but {', '.join(unchecked)} could not be read: {reasons}"
            )
        dropped |= {leak.row for leak in leaks}
    rows = [
        to_row(source, index, record, ground_truths[index], options.prompt)
        for index, record in enumerate(records)
        if index not in dropped
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA).replace_schema_metadata(
        {
            "cw_plugin.version": cw_plugin.__version__,
            "cw_plugin.source": source.path,
            "cw_plugin.revision": loaded.revision,
            "cw_plugin.prompt_sha256": options.prompt.sha256,
        }
    )
    return Prepared(source, path, table, failures, leaks, unchecked, sorted(dropped))


def _load(source: Source, revision: str | None, options: PrepareOptions, cache: dict[str, Loaded]) -> Loaded:
    """The rows of a source, after checking that each has a problem, and the number of a benchmark's."""
    if source.name in cache:
        return cache[source.name]
    loaded = load(source, options.dataset_path, revision)
    rows = len(loaded.records)
    if rows != source.rows and not source.training:  # accuracies on other questions cannot be compared
        raise DataError(f"{source.path} has {rows} rows, and the benchmark has {source.rows}; download it again.")
    empty = [row for row, record in enumerate(loaded.records) if not (record[source.question] or "").strip()]
    if empty:
        raise DataError(f"{source.path} has no problem in row(s) {', '.join(map(str, empty))}; correct the data.")
    return cache.setdefault(source.name, loaded)


def _leaks(
    problems: list[str], options: PrepareOptions, cache: dict[str, Loaded], progress: Progress
) -> tuple[list[Leak], dict[str, str]]:
    step = progress.add_task("looking for benchmark problems", total=None)
    benchmarks, unchecked = {}, {}
    for source in SOURCES.values():
        if source.training:
            continue
        try:
            records = _load(source, None, options, cache).records
        except DataError as error:
            unchecked[source.name] = str(error)
        else:
            benchmarks[source.name] = [record[source.question] for record in records]
    leaks = find_leaks(problems, benchmarks)
    progress.update(step, total=1, completed=1)
    return leaks, unchecked


def _write(item: Prepared) -> None:
    findings = {
        "rows": item.table.num_rows,
        "failures": [dataclasses.asdict(failure) for failure in item.failures],
        "leaks": [dataclasses.asdict(leak) for leak in item.leaks],
        "not_compared_with": sorted(item.unchecked),
        "dropped": item.dropped,
    }
    report = json.dumps(findings, indent=1, ensure_ascii=False) + "\n"
    try:
        write_whole(item.path.with_suffix(".report.json"), report)
        write_whole(item.path, lambda path: pq.write_table(item.table, path))
    except OSError as error:
        raise DataError(
            f"{item.path} cannot be written ({error}); free disk space, or choose another --local_save_dir."
        ) from error


def _summary(item: Prepared) -> list[str]:
    """What a person should know about a file."""
    dropped = f", {len(item.dropped)} left out" if item.dropped else ""
    lines = [f"{item.source.path}, split {item.source.split}: {item.table.num_rows} rows{dropped}"]
    unanswered = [failure.row for failure in item.failures if failure.reason == NO_ANSWER]
    if item.source.training and unanswered:
        lines.append(f"  left out, because they have no answer: row {', '.join(map(str, unanswered))}")
    if item.source.training and (total := item.table.num_rows + len(item.dropped)) != item.source.rows:
        lines.append(f"  the data has {total} rows, and the paper's has {item.source.rows}")
    findings = [f"row {failure.row}: {failure.reason}" for failure in item.failures]
    if item.source.training:
        rows = {leak.row for leak in item.leaks}
        exact = {leak.row for leak in item.leaks if leak.exact}
        per_benchmark = Counter(leak.benchmark for leak in item.leaks)
        where = "; " + ", ".join(f"{count} in {name}" for name, count in per_benchmark.items()) if rows else ""
        lines.append(
            f"  {len(rows)} training problems are also in a benchmark, {len(exact)} of them word for word{where}"
        )
        for leak in item.leaks:
            how_much = "equal to" if leak.exact else f"{leak.share:.0%} of"
            findings.append(f"row {leak.row}: {how_much} {leak.benchmark} {leak.benchmark_row}")
    lines += [f"  not compared with {name}: {reason}" for name, reason in item.unchecked.items()]
    lines += [f"  {finding}" for finding in findings[:SHOWN]]
    if len(findings) > SHOWN:
        lines.append(f"  ... and {len(findings) - SHOWN} more in {item.path.with_suffix('.report.json')}")
    return lines
