"""Reads a dataset from the hub, or from a local copy with the same layout."""

import tempfile
from pathlib import Path
from typing import Any

import datasets
import httpx
from datasets.exceptions import DatasetsError

from cw_plugin.data.sources import Source
from cw_plugin.errors import DataError, first_line


def load(source: Source, dataset_path: Path | None = None, revision: str | None = None) -> list[dict[str, Any]]:
    """The rows of ``source``, with the columns that are needed.

    A dataset that cannot be downloaded or read, lacks a column or a problem, or is a benchmark with another number of
    rows than the paper's, is a DataError.

    Args:
        dataset_path: a folder that holds a copy under the hub's name, e.g. ``DIR/knoveleng/open-rs/train.jsonl``; by
            default the hub is asked, for a ``revision`` (a branch, tag or commit) if given.
    """
    where = source.path if dataset_path is None else str(dataset_path / source.path)
    if dataset_path is not None and not Path(where).is_dir():
        raise DataError(f"{where} is not a folder; put a copy of {source.path} there, or correct --local-dataset-path")
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error below says what went wrong
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory() as cache:  # a permanent one would hide later changes of a copy
            cache_dir = cache if dataset_path else None
            data = datasets.load_dataset(where, split=source.split, revision=revision, cache_dir=cache_dir)
            rows: list[dict[str, Any]] = data.select_columns(source.columns).to_list()
    except (DatasetsError, OSError, ValueError, StopIteration, httpx.HTTPError) as error:
        reason = "it is empty" if isinstance(error, StopIteration) else first_line(error)
        if dataset_path is None:
            fix = "check the network, --revision, and `hf auth login`, or pass --local-dataset-path"
        else:
            reason, fix = first_line(error.__cause__) if error.__cause__ else reason, "correct it, or download it again"
        raise DataError(f"{where}, split {source.split}, cannot be read ({reason.rstrip('.')}); {fix}") from error
    if len(rows) != source.rows and not source.training:  # accuracies on other questions cannot be compared
        raise DataError(f"{where} has {len(rows)} rows, and the benchmark has {source.rows}; download it again")
    if empty := [str(index) for index, row in enumerate(rows) if not (row[source.question] or "").strip()]:
        raise DataError(f"{where} has no problem in row {', '.join(empty)}; correct the data")
    return rows
