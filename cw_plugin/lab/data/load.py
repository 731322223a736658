"""Reads a dataset from the hub, or from a local copy with the same layout."""

import tempfile
import zlib
from pathlib import Path
from typing import Any

import datasets
import httpx
import yaml
from datasets.exceptions import DatasetsError

from cw_plugin.errors import first_line
from cw_plugin.lab.data.sources import Source
from cw_plugin.lab.errors import DataError

Row = dict[str, Any]  # of a dataset
# What the hub, and copies that are cut off or damaged, make of datasets.load_dataset.
_UNREADABLE = (DatasetsError, OSError, ValueError, EOFError, zlib.error, StopIteration, httpx.HTTPError, yaml.YAMLError)


def load(source: Source, dataset_path: Path | None = None, revision: str | None = None) -> list[Row]:
    """Read the rows of a source, with the columns that are needed.

    A dataset that cannot be downloaded or read, lacks a column or a problem, or is a benchmark with another number of
    rows than the paper's, is a DataError.

    Args:
        source: the dataset.
        dataset_path: a folder that holds a copy under the hub's name, such as ``DIR/knoveleng/open-rs/train.jsonl``; by
            default the hub is asked.
        revision: a branch, tag or commit of the dataset on the hub.
    """
    place = source.path if dataset_path is None else str(dataset_path / source.path)
    if dataset_path is not None and not Path(place).is_dir():
        raise DataError(f"{place} is not a folder; put a copy of {source.path} there, or correct --local-dataset-path")
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error below says what went wrong
    datasets.disable_progress_bars()
    try:
        with tempfile.TemporaryDirectory() as cache:  # a permanent one would hide later changes of a copy
            cache_dir = cache if dataset_path else None
            data = datasets.load_dataset(place, split=source.split, revision=revision, cache_dir=cache_dir)
            rows: list[Row] = data.select_columns(source.columns).to_list()
    except _UNREADABLE as error:
        raise _unreadable(place, source.split, error, is_copy=dataset_path is not None) from error
    if len(rows) != source.rows and not source.training:  # accuracies on other questions cannot be compared
        raise DataError(f"{place} has {len(rows)} rows, and the benchmark has {source.rows}; download it again")
    questions = [row[source.question] for row in rows]
    wrong = [
        str(row) for row, question in enumerate(questions) if not isinstance(question, str) or not question.strip()
    ]
    if wrong:
        raise DataError(f"{place} has no problem, as text, in row {', '.join(wrong[:10])}; correct the data")
    return rows


def _unreadable(place: str, split: str, error: Exception, is_copy: bool) -> DataError:
    reason = "it is empty" if isinstance(error, StopIteration) else first_line(error)
    if not is_copy:
        fix = "check the network, --revision, and `hf auth login`, or pass --local-dataset-path"
    else:
        fix = "correct it, or download it again"
        if error.__cause__:  # of a copy, it says more than the error
            reason = first_line(error.__cause__)
    return DataError(f"{place}, split {split}, cannot be read ({reason.rstrip('.')}); {fix}")
