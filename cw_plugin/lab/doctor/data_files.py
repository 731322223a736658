"""The data files of a run: which ones its settings name, and how they are read."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig

from cw_plugin.files import is_remote

READ_BY_VERL = (".parquet", ".json", ".jsonl")


@dataclass(frozen=True)
class DataFile:
    """A local data file, and the setting that names it."""

    key: str
    path: Path

    def __str__(self) -> str:
        return f"{self.key}: {self.path}"

    def schema(self) -> pa.Schema:
        """The columns and their types; OSError or ValueError if the file cannot be read."""
        if self.path.suffix == ".parquet":
            return pq.read_schema(self.path)
        return self.read().schema

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows, with all columns or those of these that there are; OSError or ValueError if it cannot be read."""
        if self.path.suffix == ".parquet":
            return pq.ParquetFile(self.path).read(columns)  # read_table would import pandas
        text = self.path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            rows = json.loads(text)
        else:
            rows = [json.loads(line) for line in text.split("\n") if line.strip()]
        table = pa.Table.from_pylist(rows)
        return table.select([name for name in table.column_names if columns is None or name in columns])


def named_files(config: DictConfig, setting: str) -> list[str]:
    """What ``data.train_files`` or ``data.val_files`` names: one file, or a list of them."""
    named = config.data[setting]
    return [named] if isinstance(named, str) else list(named or [])


def data_files(config: DictConfig, *settings: str) -> Iterator[DataFile]:
    """The local files of ``train_files``, ``val_files`` or both. verl copies the others (``hdfs://``)."""
    for setting in settings:
        for path in named_files(config, setting):
            if not is_remote(path):
                yield DataFile(f"data.{setting}", Path(path).expanduser())
