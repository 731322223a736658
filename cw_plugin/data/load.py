"""Reads a dataset from the hub, or from a local copy with the same layout."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import httpx
from datasets.exceptions import DatasetsError
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from cw_plugin.data.sources import Source
from cw_plugin.errors import DataError, first_line

TIMEOUT = 20.0  # seconds for the hub's first answer


class Loaded(NamedTuple):
    """The rows of one split, and their identity: the hub's commit, or a hash of the rows of a local copy."""

    records: list[dict[str, Any]]
    revision: str


def load(source: Source, split: str, dataset_path: Path | None = None, revision: str | None = None) -> Loaded:
    """Read the columns of ``source`` that are needed.

    Args:
        source: which dataset.
        split: which of its splits.
        dataset_path: a folder that holds a copy under the hub's name, e.g. ``DIR/knoveleng/open-rs/train.jsonl``; by
            default the hub is asked.
        revision: a branch, tag or commit on the hub.

    Raises:
        DataError: it cannot be downloaded or read, or lacks a column.
    """
    if dataset_path is None:
        commit = _commit(source.path, revision)
        return Loaded(_read(source, source.path, split, revision=commit), commit)
    folder = dataset_path / source.path
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder; put a copy of {source.path} there, or give another --local_dataset_path."
        )
    with tempfile.TemporaryDirectory() as cache:  # a permanent cache would hide later changes of the files
        records = _read(source, str(folder), split, cache_dir=cache)
    digest = hashlib.sha256(json.dumps(records, sort_keys=True, default=str).encode()).hexdigest()
    return Loaded(records, f"sha256:{digest}")


def _commit(path: str, revision: str | None) -> str:
    try:
        return str(HfApi().dataset_info(path, revision=revision, timeout=TIMEOUT).sha)
    except GatedRepoError as error:
        raise DataError(
            f"{path} is gated: accept its terms at https://huggingface.co/datasets/{path}, then run `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise DataError(
            f"{path} has no revision {revision!r}; give --revision a branch, tag or commit of it."
        ) from error
    except RepositoryNotFoundError as error:
        raise DataError(f"The hub has no dataset {path}, or it is private: then run `hf auth login`.") from error
    except (httpx.HTTPError, OSError) as error:
        raise DataError(
            f"The hub cannot be reached for {path} ({first_line(error).rstrip('.')}); check the network, or pass "
            "--local_dataset_path with a copy."
        ) from error


def _read(source: Source, where: str, split: str, **kwargs: Any) -> list[dict[str, Any]]:
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the errors below say what went wrong
    datasets.disable_progress_bars()
    try:
        data = datasets.load_dataset(where, split=split, **kwargs)
        missing = [column for column in source.columns if column not in data.column_names]
        if not missing:
            return data.select_columns(source.columns).to_list()
    except StopIteration as error:
        raise DataError(f"The split {split} of {where} is empty; download it again.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 ({error}); convert its files to UTF-8.") from error
    except (DatasetsError, OSError, ValueError, httpx.HTTPError) as error:
        reason = first_line(error.__cause__ or error).rstrip(".")
        raise DataError(f"The split {split} of {where} cannot be read ({reason}); download it again.") from error
    raise DataError(
        f"{source.path} lacks the column(s) {', '.join(missing)}; it has {', '.join(data.column_names)}. "
        "Rename them, or pin a --revision that has them."
    )
