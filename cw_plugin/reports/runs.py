"""Reads the metrics of a run by step, from any logger of verl or TRL."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cw_plugin.errors import NoMetricsError, ReportError
from cw_plugin.files import expanded, find
from cw_plugin.reports import trl

Series = dict[int, float]  # step -> value

# The part of the name that differs between the files of a resumed run: metrics.2.jsonl, metrics-20261031-120000.jsonl
# (examples/).
_RESUMED = re.compile(r"\.\d+$|-\d{8}-\d{6}$")


@dataclass(frozen=True)
class Run:
    """What a run folder holds.

    Attributes:
        name: of the method; seeds of one method share it.
        path: the folder.
        metrics: name of a metric in verl -> its value at each step.
        config: as :func:`read_config` gives it, empty if there is none.
    """

    name: str
    path: Path
    metrics: dict[str, Series]
    config: dict[str, Any] = field(default_factory=dict)

    def series(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps (int64) and values (float64) of a metric, in order; both empty if the run did not log it."""
        values = sorted(self.metrics.get(metric, {}).items())
        steps = np.array([step for step, _ in values], dtype=np.int64)
        return steps, np.array([value for _, value in values], dtype=np.float64)


def read_run(argument: str | Path) -> Run:
    """Read ``FOLDER``, or ``NAME=FOLDER`` where several folders with one name are seeds of one method.

    The folder is searched, with its subfolders, in this order: files of verl's file logger (``*.jsonl``), TRL's
    ``trainer_state.json``, TensorBoard's event files, W&B's offline runs. If two files of a resumed run have the same
    step, the one that was started later counts. File names decide which that is, because copying changes modification
    times.

    Raises:
        NoMetricsError: the folder has no metrics.
        ReportError: the folder has several runs, or a file that cannot be read.
    """
    name, path = split_name(argument)
    if not path.exists():
        raise ReportError(f"{path} does not exist; give the folder of a run (or of verl's logger)")
    for pattern, reader, begun in (
        ("*.jsonl", _read_jsonl, _jsonl_begun),
        (trl.STATE, trl.read_state, trl.last_step),
        ("events.out.tfevents.*", _read_tensorboard, _tensorboard_begun),
        ("*.wandb", _read_wandb, _wandb_begun),
    ):
        files = [path] if path.is_file() and path.match(pattern) else sorted(find(path, pattern), key=begun)
        metrics: dict[str, Series] = defaultdict(dict)
        found = set()
        for file in files:
            for step, values in reader(file):
                found.add(_run_of(file))
                for key, value in trl.verl_names(values).items():
                    metrics[key][step] = value
        refuse_several(path, found)
        if metrics:
            return Run(name, path, dict(metrics))
    raise NoMetricsError(
        f"{path} holds no metrics: no file of verl's file logger (*.jsonl), no trainer_state.json of TRL, no "
        "TensorBoard events, no W&B offline run; train with trainer.logger=[console,file], in TRL call "
        "trainer.save_state() at the end"
    )


def _run_of(file: Path) -> Path:
    """A key that all files of one run share, also if it was resumed."""
    if file.name == trl.STATE:
        return trl.run_of(file)
    if file.suffix == ".wandb":  # each in a folder of its own
        return file.parent.parent
    if file.suffix == ".jsonl":
        return file.parent / _RESUMED.sub("", file.stem)
    return file.parent


def refuse_several(path: Path, runs: set[Path]) -> None:
    """Raise ReportError if a folder that should hold one run holds several."""
    if len(runs) > 1:
        shown = ", ".join(str(run.relative_to(path)) for run in sorted(runs)[:3])
        raise ReportError(
            f"{path} holds {len(runs)} runs ({shown}{', ...' if len(runs) > 3 else ''}); give the folder of each as "
            "NAME=FOLDER"
        )


def split_name(argument: str | Path) -> tuple[str, Path]:
    """Split ``NAME=FOLDER``; without a name, the folder's name is used."""
    text = str(argument)
    if "=" in text and not Path(text).exists():
        name, _, folder = text.partition("=")
        if not name:
            raise ReportError(f"{text!r} has no name before the =; write NAME=FOLDER or FOLDER")
        return name, expanded(folder)
    path = expanded(text)
    return path.resolve().stem if path.is_file() else path.resolve().name, path


def read_config(path: Path) -> dict[str, Any] | None:
    """The run's resolved configuration as hydra left it, or TRL's arguments in its place, or None."""
    from omegaconf import OmegaConf

    found = find(path, ".hydra/config.yaml") if path.is_dir() else []  # hydra's folders are named by date and time
    if not found:
        arguments = find(path, trl.ARGUMENTS) if path.is_dir() else []
        return trl.read_arguments(arguments[-1]) if arguments else None
    return OmegaConf.to_container(OmegaConf.load(found[-1]), resolve=False)  # type: ignore[return-value]


@contextmanager
def _needs(package: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ReportError(f"{package} is needed to read these files; pip install {package}") from error


def _jsonl_begun(path: Path) -> float:
    """Sort key of a resumed run's files; the one without a number is the last."""
    number = _RESUMED.search(path.stem)
    return int(re.sub(r"\D", "", number[0])) if number else math.inf


def _tensorboard_begun(path: Path) -> float:
    """Seconds since 1970, the first number of ``events.out.tfevents.1795331168.host.pid.n``."""
    return float(re.search(r"tfevents\.(\d*)", path.name)[1] or 0)  # type: ignore[index]


def _wandb_begun(path: Path) -> str:
    """The date and time in ``offline-run-20261122_070607-ID/run-ID.wandb``."""
    return path.parent.name


def _read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """verl's file logger. Other JSON lines (validation dumps) and an incomplete last line are ignored."""
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
    """W&B's offline log, as W&B's own command line prints it."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    printed = subprocess.run(command, capture_output=True, text=True)
    if printed.returncode != 0:
        reason = (printed.stderr.strip().splitlines() or ["no output"])[-1]
        raise ReportError(f"{path} is read by W&B's own command, which failed ({reason}); pip install 'wandb>=0.31'")
    for line in printed.stdout.splitlines():
        record = json.loads(line)
        if record["type"] == "history":
            values = record["history"]["item"]
            numbers = {
                key: float(value)
                for key, value in values.items()
                if key[0] != "_" and (_is_number(value) or value in ("NaN", "Infinity", "-Infinity"))
            }
            yield int(values.get("_step", record["history"].get("step", {}).get("num", 0))), numbers
