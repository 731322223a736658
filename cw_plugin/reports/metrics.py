"""Reads the metrics of a run by step, from any logger of verl, TRL or OpenRLHF."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cw_plugin.errors import DataError
from cw_plugin.files import find

# What a host calls a metric -> verl's name, which is ours. Other metrics, such as cw_grpo/, keep their names.
OURS = {
    # TRL, ms-swift: in trainer_state.json and, as train/reward, in other loggers
    "reward": "critic/score/mean",
    "entropy": "actor/entropy",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "kl": "actor/kl_loss",
    "completions/mean_length": "response_length/mean",
    "completions/max_length": "response_length/max",
    "completions/min_length": "response_length/min",
    "completions/clipped_ratio": "response_length/clip_ratio",
    "step_time": "timing_s/step",
    # their evaluations, with the rewards of cw_plugin.rewards.trl: eval_reward, eval/reward
    "eval/rewards/accuracy_reward/mean": "val-core/eval/acc/mean@n",
    "eval/rewards/format_reward/mean": "val-aux/eval/format/mean@n",
    "eval/reward": "val-core/eval/score/mean@n",
    # OpenRLHF, as train/... in TensorBoard; its reward and kl are called as TRL's
    "entropy_loss": "actor/entropy",
    "actor_grad_norm": "actor/grad_norm",
    "actor_lr": "actor/lr",
    "response_length": "response_length/mean",
    "rollout/truncated_rate": "response_length/clip_ratio",
    "timing/step_total": "timing_s/step",
    "eval/eval_default_pass1": "val-core/eval/score/mean@n",
}

REWARD, ENTROPY, NORM = "critic/score/mean", "actor/entropy", "actor/grad_norm"

STATE = "trainer_state.json"  # of transformers, in output_dir and in each of its checkpoints

# The part of the name that differs between the files of a resumed run: metrics.2.jsonl, metrics-20261031-120000.jsonl
# (examples/).
_RESUMED = re.compile(r"\.\d+$|-\d{8}-\d{6}$")
# A checkpoint's step; and seconds since 1970, as TensorBoard writes them.
_BEGUN = re.compile(rf"checkpoint-\d+(?=/{STATE}$)|tfevents\.\d+")

Points = Iterator[tuple[Any, Mapping[str, Any], str]]  # step, metrics, and where it stands in the file


def read_metrics(path: Path) -> pd.DataFrame:
    """A row for each step and a column for each metric, as in :class:`Run`; empty if ``path`` holds no metrics.

    It is searched, with its subfolders, in this order: files of verl's file logger (``*.jsonl``), trainer_state.json of
    TRL, event files of TensorBoard. If files of a resumed run have the same step, what was measured first stays; file
    names tell which that is, because copying changes modification times.

    Raises:
        DataError: it does not exist, holds several runs, or a file cannot be read.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; give the folder of a run (or of its logger)")
    for pattern, read in _LOGGERS.items():
        files = [path] if path.is_file() and path.match(pattern) else sorted(files_in(path, pattern), key=_begun)
        rows: dict[int, dict[str, float]] = {}
        runs = set()
        for file in files:
            for step, values, place in read(file):
                if isinstance(step, float) and step.is_integer():
                    step = int(step)
                if type(step) is not int:
                    raise DataError(f"{file}{place}: the step is {step!r}, not a whole number; remove the entry")
                runs.add(_run_of(file))
                row = rows.setdefault(step, {})
                for name, value in values.items():
                    if (number := _finite(value)) is not None:
                        row.setdefault(our_name(name), number)
        refuse_several(path, runs)
        if rows:
            return pd.DataFrame.from_dict(rows, orient="index", dtype=float).sort_index()
    return pd.DataFrame()


def accuracy_metrics(metrics: pd.DataFrame) -> list[str]:
    """The columns with the accuracy of a validation set."""
    return [name for name in metrics if name.startswith("val-core/") and "/acc/mean@" in name]


def our_name(name: str) -> str:
    """Verl's name of a metric of another host."""
    name = re.sub("^eval_", "eval/", name)
    return OURS.get(name) or OURS.get(name.removeprefix("train/")) or name.removeprefix("train/")


def _finite(value: Any) -> float | None:
    """None also for a whole number that no float64 holds."""
    if type(value) not in (int, float):
        return None
    return float(value) if -1e308 < value < 1e308 else None


def files_in(path: Path, pattern: str) -> list[Path]:
    """The files below a folder that match, without folders; of a file, none."""
    return [file for file in find(path, pattern) if file.is_file()] if path.is_dir() else []


def _read_jsonl(path: Path) -> Points:
    """verl's file logger. Other JSON lines (answers) and an incomplete last line are passed over."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            if number == len(lines):  # the run is being written, or was killed
                return
            raise DataError(f"{path}, line {number} is not JSON; remove the line, or the file") from None
        if not isinstance(record, dict) or set(record) != {"step", "data"} or not isinstance(record["data"], dict):
            return
        yield record["step"], record["data"], f", line {number}"


def _read_state(path: Path) -> Points:
    """What transformers has logged. Of several evaluation sets each has an entry, in which only the loss and the times
    bear the set's name; here all do."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["log_history"]
        for number, entry in enumerate(entries, 1):
            values = dict(entry)
            step = values.pop("step")
            if found := next(filter(None, (re.fullmatch("eval_(.+)_runtime", key) for key in values)), None):
                ours = {our_name(key): value for key, value in values.items()}
                values = {
                    key.replace("eval", found[1] if key.startswith("val-") else f"eval/{found[1]}", 1): value
                    for key, value in ours.items()
                }
            yield step, values, f", entry {number} of log_history"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not what transformers writes ({error!r}); remove the file") from None


def _read_tensorboard(path: Path) -> Points:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError:
        raise DataError(f"{path} needs tensorboard to be read; pip install tensorboard") from None
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.HasField("tensor"):  # the loader turns scalars into tensors
                array = tensor_util.make_ndarray(value.tensor)
                if array.ndim == 0 and np.issubdtype(array.dtype, np.number):
                    yield event.step, {value.tag: float(array)}, ""


_LOGGERS: dict[str, Callable[[Path], Points]] = {
    "*.jsonl": _read_jsonl,
    STATE: _read_state,
    "events.out.tfevents.*": _read_tensorboard,
}


def _begun(file: Path) -> float:
    """Order of a resumed run's files, by the number in their names; the one without a number is the last."""
    number = _RESUMED.search(file.stem) if file.suffix == ".jsonl" else _BEGUN.search(str(file))
    return int(re.sub(r"\D", "", number[0])) if number else math.inf


def _run_of(file: Path) -> Path:
    """A key that all files of one run share, also if it was resumed."""
    if file.name == STATE:
        return file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent
    return file.parent / _RESUMED.sub("", file.stem) if file.suffix == ".jsonl" else file.parent


def refuse_several(path: Path, runs: set[Path]) -> None:
    """Raise DataError if a folder that should hold one run holds several."""
    if len(runs) > 1:
        shown = ", ".join(str(run.relative_to(path)) for run in sorted(runs)[:3])
        more = ", ..." if len(runs) > 3 else ""
        raise DataError(f"{path} holds {len(runs)} runs ({shown}{more}); give the folder of each as NAME=FOLDER")
