"""Reads what the loggers of the training frameworks leave on a disk: for each entry its step, and what was logged.

The names are the logger's own; metrics.py gives them ours, and says which files a reader is for (_LOGGERS).
"""

import json
import sqlite3
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from cw_plugin.lab.errors import DataError

Entry = tuple[object, Mapping[str, object]]  # a step, and what was logged there

# Weights & Biases and trackio count steps of their own, beside which transformers and OpenRLHF log those of training.
STEPS_OF_TRAINING = ("train/global_step", "eval/global_step")
_STEP_COLUMNS = (*STEPS_OF_TRAINING, "global_step", "training/global_step", "step", "_step", "Step")


def read_jsonl(file: Path) -> Iterator[Entry]:
    """Read verl's file logger; other JSON lines, such as answers, have no entry."""
    lines = file.read_bytes().split(b"\n")
    is_log = False
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.strip() or b"null")
        except ValueError:
            if number == len(lines):  # the run is being written, or was killed
                return
            raise DataError(f"{file}, line {number} is not JSON; remove the line, or the file") from None
        match record:
            case {"step": int() | float() as step, "data": dict(metrics)}:
                is_log = True
                yield step, metrics
            case None:  # an empty line
                pass
            case _ if is_log:
                raise DataError(f"{file}, line {number} has no step, a number, with data; correct or remove the line")
            case _:
                return


def read_tensorboard(file: Path) -> Iterator[Entry]:
    """Read an event file of TensorBoard."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise DataError(f"{file} needs tensorboard to be read; pip install tensorboard") from None
    events = EventAccumulator(str(file), size_guidance={"scalars": 0}, purge_orphaned_data=False).Reload()
    scalars = [(event, name) for name in events.Tags()["scalars"] for event in events.Scalars(name)]
    for event, name in sorted(scalars, key=lambda scalar: scalar[0].wall_time):
        yield event.step, {name: event.value}


def read_wandb(file: Path) -> Iterator[Entry]:
    """Read the file of a run of Weights & Biases, ``run-ID.wandb``, which online and offline runs leave."""
    for record in _records_of_wandb(file):
        if record.WhichOneof("record_type") == "history":
            logged = _items_of_wandb(record.history.item)
            step = logged.get("_step", record.history.step.num)
            yield step, {name: value for name, value in logged.items() if not name.startswith("_")}


def config_of_wandb(file: Path) -> dict[str, Any]:
    """The settings that a run of Weights & Biases was given."""
    config: dict[str, Any] = {}
    for record in _records_of_wandb(file):
        kind = record.WhichOneof("record_type")
        if kind in ("run", "config"):
            config |= _items_of_wandb((record.run.config if kind == "run" else record.config).update)
    return {name: value for name, value in config.items() if name != "_wandb"}


def _items_of_wandb(items: Any) -> dict[str, Any]:
    return {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


_BLOCK, _HEAD = 32768, 7  # bytes: of a block, and of the head of the file and of each piece


def _records_of_wandb(file: Path) -> Iterator[Any]:
    """The records of the file: messages of wandb's protocol, in the format of LevelDB's log.

    wandb itself can read it only in its compiled part. A run that is being written may end within a record.
    """
    try:
        from wandb.proto.wandb_internal_pb2 import Record
    except ImportError:
        raise DataError(f"{file} needs wandb to be read; pip install wandb") from None
    data, at, pieces = file.read_bytes(), _HEAD, b""
    if data[:4] != b":W&B":
        raise DataError(f"{file} is not a file of Weights & Biases; remove it, or restore it")
    while at + _HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD:  # no piece begins here
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + _HEAD])
        pieces += data[at + _HEAD : at + _HEAD + length]
        at += _HEAD + length
        is_last_piece = kind in (1, 4)  # of one piece, or the last of several
        if is_last_piece and at <= len(data):
            yield Record.FromString(pieces)
            pieces = b""


def run_of_trackio(path: Path) -> tuple[Path, str] | None:
    """The database and the name of the run in ``PROJECT.db/RUN``, or of the only one in ``PROJECT.db``; else None."""
    database = next((place for place in (path, *path.parents) if place.suffix == ".db" and place.is_file()), None)
    if database is None:
        return None
    names = [name for (name,) in _rows_of_trackio(database, "SELECT DISTINCT run_name FROM metrics ORDER BY id")]
    meant = [name for name in names if path in (database, Path(f"{database}/{name}"))]  # a name may be a path
    if len(meant) != 1:
        shown = ", ".join(f"{database}/{name}" for name in names[:3])
        raise DataError(f"{path} is not one run of trackio; give one of the {len(names)} that it has, such as {shown}")
    return database, meant[0]


def read_trackio(database: Path, run: str) -> Iterator[Entry]:
    """Read a run of a project of trackio."""
    query = "SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id"
    for step, metrics in _rows_of_trackio(database, query, run):
        yield step, json.loads(metrics)


def config_of_trackio(database: Path, run: str) -> dict[str, Any]:
    """The settings of a run of trackio; empty if it was given none."""
    configs = _rows_of_trackio(database, "SELECT config FROM configs WHERE run_name = ? ORDER BY id", run)
    return dict(json.loads(configs[-1][0])) if configs else {}


def _rows_of_trackio(database: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise DataError(f"{database} is not a project of trackio ({error}); give its PROJECT.db") from None


def read_table(file: Path) -> Iterator[Entry]:
    """Read a CSV or parquet file with a column of steps, such as a table or a chart that Weights & Biases exports."""
    try:
        # In a CSV file, an empty cell was not logged. NaN was, and is not finite.
        is_parquet = file.suffix == ".parquet"
        table = pd.read_parquet(file) if is_parquet else pd.read_csv(file, keep_default_na=False, na_values=[""])
    except (ValueError, OSError) as error:
        raise DataError(f"{file} cannot be read as a table ({error}); export it again") from None
    # A chart's columns are "RUN - METRIC", and the same with __MIN and __MAX.
    table.columns = [str(column).strip() for column in table.columns]
    runs = {column.rpartition(" - ")[0] for column in table} - {""}
    if len(runs) > 1:
        raise DataError(f"{file} holds {len(runs)} runs ({', '.join(sorted(runs))}); export each by itself")
    table = table.drop(columns=[column for column in table if column.endswith(("__MIN", "__MAX"))])
    table = table.rename(columns=lambda column: column.rpartition(" - ")[2])
    step = next((name for name in _STEP_COLUMNS if name in table), None)
    if step is None:
        seen = ", ".join(table.columns[:5])
        raise DataError(f"{file} has no column of steps, only {seen} ...; call one of them step")
    for _, row in table.iterrows():
        logged = row.dropna().to_dict()
        if not logged.keys().isdisjoint((step, *STEPS_OF_TRAINING)):
            yield logged.pop(step, None), logged
