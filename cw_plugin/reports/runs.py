"""A run's metrics by step, from whichever of verl's loggers wrote them."""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cw_plugin.errors import NoMetricsError, ReportError

Series = dict[int, float]  # step -> value

# What tells the files of a run that was resumed apart: metrics.2.jsonl, metrics-20261031-120000.jsonl (examples/).
_RESUMED = re.compile(r"(\.\d+|-\d{8}-\d{6})$")


@dataclass(frozen=True)
class Run:
    """What a run folder holds.

    Attributes:
        name: of the method, what seeds of one method have in common.
        path: the folder.
        metrics: name of a metric in verl -> its value at each step.
    """

    name: str
    path: Path
    metrics: dict[str, Series]

    def series(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps (int64) and values (float64) of a metric, in order; both empty if the run did not log it."""
        values = sorted(self.metrics.get(metric, {}).items())
        steps = np.array([step for step, _ in values], dtype=np.int64)
        return steps, np.array([value for _, value in values], dtype=np.float64)


def read_run(argument: str | Path) -> Run:
    """Read ``FOLDER``, or ``NAME=FOLDER`` where several folders with one name are seeds of one method.

    In the folder or below it stand files of verl's file logger (``*.jsonl``), TensorBoard's event files, or W&B's
    offline runs, looked for in this order. Of a run that was resumed, the later file counts where both have a step.

    Raises:
        NoMetricsError: nothing to read there.
        ReportError: several runs, or a file that is not what it seems.
    """
    name, path = split_name(argument)
    if not path.exists():
        raise ReportError(f"{path} does not exist; give the folder of a run (or of verl's logger)")
    for pattern, reader in (
        ("*.jsonl", _read_jsonl),
        ("events.out.tfevents.*", _read_tensorboard),
        ("*.wandb", _read_wandb),
    ):
        files = [path] if path.is_file() and path.match(pattern) else sorted(path.rglob(pattern), key=_modified)
        metrics: dict[str, Series] = defaultdict(dict)
        found = set()
        for file in files:
            for step, values in reader(file):
                found.add(_run_of(file))
                for key, value in values.items():
                    metrics[key][step] = value
        refuse_several(path, found)
        if metrics:
            return Run(name, path, dict(metrics))
    raise NoMetricsError(
        f"{path} holds no metrics: no file of verl's file logger (*.jsonl), no TensorBoard events, no W&B offline run; "
        "train with trainer.logger=[console,file]"
    )


def _run_of(file: Path) -> Path:
    """What the files of one run have in common, those of a run that was resumed included."""
    if file.suffix == ".wandb":  # each in a folder of its own
        return file.parent.parent
    if file.suffix == ".jsonl":
        return file.parent / _RESUMED.sub("", file.stem)
    return file.parent


def refuse_several(path: Path, runs: set[Path]) -> None:
    """Raise ReportError where a folder that should be one run's holds several."""
    if len(runs) > 1:
        shown = ", ".join(str(run.relative_to(path)) for run in sorted(runs)[:3])
        raise ReportError(
            f"{path} holds {len(runs)} runs ({shown}{', ...' if len(runs) > 3 else ''}); give each one's folder, as "
            "NAME=FOLDER"
        )


def split_name(argument: str | Path) -> tuple[str, Path]:
    """``NAME=FOLDER`` apart; without a name it is the folder's."""
    text = str(argument)
    if "=" in text and not Path(text).exists():
        name, _, folder = text.partition("=")
        if not name:
            raise ReportError(f"{text!r} has no name before the =; write NAME=FOLDER, or the folder alone")
        return name, Path(folder)
    path = Path(text)
    return path.resolve().stem if path.is_file() else path.resolve().name, path


def read_config(path: Path) -> dict[str, Any] | None:
    """The run's resolved configuration as hydra left it (``.hydra/config.yaml``), or None."""
    from omegaconf import OmegaConf

    found = sorted(path.rglob(".hydra/config.yaml"), key=_modified) if path.is_dir() else []
    if not found:
        return None
    return OmegaConf.to_container(OmegaConf.load(found[-1]), resolve=False)  # type: ignore[return-value]


@contextmanager
def _needs(package: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ReportError(f"these are files of {package}, which is not installed; pip install {package}") from error


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def _read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """verl's file logger. Other JSON lines (validation dumps) are passed over; a line cut off at the end as well."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):  # the run is being written, or was killed
                return
            raise ReportError(f"{path}, line {number} is not JSON; remove the line, or the file") from None
        if not isinstance(record, dict) or set(record) != {"step", "data"} or not isinstance(record["data"], dict):
            return
        numbers = {key: float(value) for key, value in record["data"].items() if _is_number(value)}
        yield int(record["step"]), numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read_tensorboard(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    with _needs("tensorboard"):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util

    for event in EventFileLoader(str(path)).Load():
        values = {}
        for value in event.summary.value:
            if value.HasField("tensor"):  # the loader turns scalars into tensors
                array = tensor_util.make_ndarray(value.tensor)
                if array.ndim == 0 and np.issubdtype(array.dtype, np.number):
                    values[value.tag] = float(array)
        if values:
            yield event.step, values


def _read_wandb(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """W&B's offline log: after a header of 7 bytes, protobuf records in the frames of LevelDB's log format."""
    with _needs("wandb"):
        from wandb.proto import wandb_internal_pb2

    for data in _leveldb_records(path.read_bytes()[7:], 7):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(data)
        if record.WhichOneof("record_type") != "history":
            continue
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        step = values.get("_step", record.history.step.num)
        yield int(step), {key: float(v) for key, v in values.items() if _is_number(v) and not key.startswith("_")}


def _leveldb_records(data: bytes, offset: int) -> Iterator[bytes]:
    """Blocks of 32 KiB hold frames: checksum (4 bytes), length (2), type (whole, first, middle, last), data.

    ``offset`` is where in its block ``data`` begins. An incomplete frame at the end is left out.
    """
    block = 2**15
    at, parts = 0, []
    while at + 7 <= len(data):
        if block - (at + offset) % block < 7:  # no room for a frame's head: padding
            at += block - (at + offset) % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 or at + 7 + length > len(data):
            return
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or last
            yield b"".join(parts)
            parts = []
