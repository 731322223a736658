"""Reads a dataset from the hub, or from a local copy with the same layout."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import httpx
from datasets.exceptions import DatasetNotFoundError, DatasetsError

from cw_plugin.data.sources import Source
from cw_plugin.errors import DataError, first_line


class Loaded(NamedTuple):
    """The rows of a source's split, and a hash of them."""

    records: list[dict[str, Any]]
    revision: str


def load(source: Source, dataset_path: Path | None = None, revision: str | None = None) -> Loaded:
    """Read the columns of ``source`` that are needed.

    Args:
        source: which dataset.
        dataset_path: a folder that holds a copy under the hub's name, e.g. ``DIR/knoveleng/open-rs/train.jsonl``; by
            default the hub is asked.
        revision: a branch, tag or commit on the hub.

    Raises:
        DataError: it cannot be downloaded or read, or lacks a column.
    """
    if dataset_path is None:
        records = _read(source, source.path, revision=revision)
    else:
        folder = dataset_path / source.path
        if not folder.is_dir():
            raise DataError(
                f"{folder} is not a folder; put a copy of {source.path} there, or give another --local_dataset_path."
            )
        with tempfile.TemporaryDirectory() as cache:  # a permanent cache would hide later changes of the files
            records = _read(source, str(folder), cache_dir=cache)
    digest = hashlib.sha256(json.dumps(records, sort_keys=True, default=str).encode()).hexdigest()
    return Loaded(records, f"sha256:{digest}")


def _read(source: Source, where: str, **kwargs: Any) -> list[dict[str, Any]]:
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the errors below say what went wrong
    datasets.disable_progress_bars()
    try:
        data = datasets.load_dataset(where, split=source.split, **kwargs)
        missing = [column for column in source.columns if column not in data.column_names]
        if not missing:
            return data.select_columns(source.columns).to_list()
    except StopIteration as error:
        raise DataError(f"The split {source.split} of {where} is empty; download it again.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 ({error}); convert its files to UTF-8.") from error
    except (DatasetsError, OSError, ValueError, httpx.HTTPError) as error:
        from_hub = where == source.path
        reason = first_line(error if from_hub else error.__cause__ or error).rstrip(".")
        if from_hub and isinstance(error, DatasetNotFoundError):  # also a private or gated one, or another revision
            message = f"The hub gives no {where} ({reason}); check --revision, or run `hf auth login`."
        elif from_hub and isinstance(error, (OSError, httpx.HTTPError)):
            message = (
                f"The hub cannot be reached for {where} ({reason}); check the network, or pass --local_dataset_path."
            )
        else:
            message = f"The split {source.split} of {where} cannot be read ({reason}); download it again."
        raise DataError(message) from error
    raise DataError(
        f"{source.path} lacks the column(s) {', '.join(missing)}; it has {', '.join(data.column_names)}. "
        "Rename them, or pass the --revision that has them."
    )
