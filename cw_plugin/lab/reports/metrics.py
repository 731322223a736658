"""Reads what a run has logged, with any logger of verl, TRL, ms-swift, OpenRLHF or SkyRL, under verl's names."""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.result_files import files_in, in_order, refuse_several

REWARD = "critic/score/mean"
ENTROPY = "actor/entropy"
NORM = "actor/grad_norm"

# What a host calls a metric -> verl's name, which is ours. Other metrics, such as cw_grpo/, keep their names.
METRIC_NAMES = {
    # TRL, ms-swift: in trainer_state.json and, as train/reward, in other loggers
    "reward": REWARD,
    "entropy": ENTROPY,
    "grad_norm": NORM,
    "learning_rate": "actor/lr",
    "kl": "actor/kl_loss",
    "completions/mean_length": "response_length/mean",
    # their evaluations, with the rewards of cw_plugin.lab.rewards.trl: eval_reward, eval/reward
    "eval/rewards/accuracy_reward/mean": "val-core/eval/acc/mean@n",
    "eval/rewards/format_reward/mean": "val-aux/eval/format/mean@n",
    "eval/reward": "val-core/eval/score/mean@n",
    # OpenRLHF, as train/... in TensorBoard; its reward and kl are called as TRL's
    "entropy_loss": ENTROPY,
    "actor_grad_norm": NORM,
    "actor_lr": "actor/lr",
    "response_length": "response_length/mean",
    "eval/eval_default_pass1": "val-core/eval/score/mean@n",
    # SkyRL; acc and format are of the environment cw_plugin.lab.rewards.skyrl
    "reward/avg_raw_reward": REWARD,
    "policy/policy_entropy": ENTROPY,
    "policy/grad_norm": NORM,
    "policy/policy_lr": "actor/lr",
    "policy/policy_kl": "actor/kl_loss",
    "generate/avg_num_tokens": "response_length/mean",
    "eval/all/environment/acc": "val-core/eval/acc/mean@n",
    "eval/all/environment/format": "val-aux/eval/format/mean@n",
    "eval/all/avg_score": "val-core/eval/score/mean@n",
}
STATE = "trainer_state.json"  # of transformers, in output_dir and in each of its checkpoints
USUAL_NAMES = ("metrics", "trainer_state", "events.out")  # with which the names of loggers' files begin


class Log(NamedTuple):
    """All metrics of a run.

    Attributes:
        metrics: a column for each metric, and a row for each step, in order: the steps that the last model descends
            from. nan is what was not logged; inf, what was logged and is not a finite number.
        lost: steps that a restart trained again, or gave up, in order; ``metrics`` has them as trained last, if they
            were trained again.
        notes: a sentence for each thing that could not be read.
    """

    metrics: pd.DataFrame
    lost: list[int]
    notes: list[str]


class Entry(NamedTuple):
    """What a logger wrote for one step, and where it stands in the file."""

    step: object
    metrics: Mapping[str, object]
    place: str = ""


def read_metrics(path: Path) -> Log:
    """Read the metrics of a run; without a row if ``path`` holds none.

    It is searched, with its subfolders, in this order: files of verl's file logger (``*.jsonl``), trainer_state.json of
    TRL, event files of TensorBoard. The numbers in their names tell which file of a resumed run is the later one,
    because copying changes modification times.
    """
    if not os.path.exists(path):  # unlike Path.exists, it takes a name that is too long
        raise DataError(f"{path} does not exist; give the folder of a run (or of its logger)")
    notes: list[str] = []
    for pattern, read in _LOGGERS.items():
        starts = _Starts()
        runs = set()
        for file in _log_files(path, pattern):
            if pattern == "*.jsonl" and not _is_json_lines(file):
                notes.append(f"{file} is left out: its first line is not JSON.")
                continue
            for entry in read(file):
                starts.add(_whole_number(entry, file), entry.metrics)
                runs.add(_run_of(file))
        refuse_several(path, runs)
        if any(starts.rows.values()):
            metrics = pd.DataFrame.from_dict(starts.rows, orient="index", dtype=float).sort_index()
            return Log(metrics, sorted(starts.lost), notes)
        if starts.rows:
            notes.append(f"{path} has logged steps, but no value of a metric ({pattern}) is a number.")
    return Log(pd.DataFrame(), [], notes)


class _Starts:
    """What the starts of one run have logged, in the order in which they did: ``rows`` is step -> metric -> value.

    A start that goes back to an earlier step continues from a checkpoint of it, or from the beginning. So everything
    after that step is of weights that were lost, and goes.
    """

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.lost: set[int] = set()
        self._last = -1

    def add(self, step: int, metrics: Mapping[str, object]) -> None:
        if step < self._last:
            self._lose_after(step)
        self._last = step
        row = self.rows.setdefault(step, {})
        for name, value in metrics.items():
            number = _logged(value)
            if number is None:
                continue
            metric = _our_name(name)
            # A start may validate the checkpoint it begins with. transformers notes the epoch in every entry of a step.
            may_come_again = metric == "epoch" or metric.startswith(("val-", "eval/"))
            if metric in row and not may_come_again:
                self.lost.add(step)
            row[metric] = number

    def _lose_after(self, step: int) -> None:
        lost = [later for later in self.rows if later > step]
        self.lost.update(lost)
        for later in lost:
            del self.rows[later]


def _log_files(path: Path, pattern: str) -> list[Path]:
    """The files of a run to be read, the earlier start first."""
    if path.is_file() and path.match(pattern):
        return [path]
    files = sorted(files_in(path, pattern), key=in_order)
    if pattern == STATE and files:
        refuse_several(path, {_run_of(file) for file in files})
        return [max(files, key=_progress)]  # each has the whole log of its run up to then
    return files


def _whole_number(entry: Entry, file: Path) -> int:
    step = entry.step
    if isinstance(step, float) and step.is_integer():
        return int(step)
    if isinstance(step, int) and not isinstance(step, bool):
        return step
    raise DataError(f"{file}{entry.place}: the step is {step!r}, not a whole number; remove the entry")


def _run_of(file: Path) -> Path:
    """A key that all files of one run share, also if it was resumed."""
    if file.name == STATE:
        return file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent
    if file.suffix != ".jsonl":
        return file.parent
    name = re.sub(r"-\d{8}-\d{6}$", "", file.stem)  # metrics-20261031-120000.jsonl: one for each start
    return file.parent / (name if name != file.stem else _name_of_last_start(file))


def _name_of_last_start(file: Path) -> str:
    """``metrics`` for metrics.2.jsonl, which was metrics.jsonl until another start needed that name.

    Another name with a number at its end may mean something else: ``qwen2.5.jsonl`` is no earlier start of qwen2.jsonl.
    It is one if the last start is there, and the numbers before it are, down to 1.
    """
    base, _, number = file.stem.rpartition(".")
    if not (base and number.isdecimal()):
        return file.stem
    expected = [file.with_name(f"{base}.{earlier}.jsonl") for earlier in range(1, int(number))]
    expected.append(file.with_name(f"{base}.jsonl"))
    is_start = base in USUAL_NAMES or all(other.exists() for other in expected)
    return base if is_start else file.stem


def _logged(value: object) -> float | None:
    """A value that was logged: inf if it is not finite, None if it is no number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    is_finite = abs(value) < 1e308  # and float64 holds it
    return value if is_finite else math.inf


def _our_name(name: str) -> str:
    name = re.sub("^eval_", "eval/", name).removeprefix("train/")
    name = re.sub("^actor/cw_grpo/", "cw_grpo/", name)  # of verl's policy loss, which verl logs among the actor's
    return METRIC_NAMES.get(name, name)


def _is_json_lines(file: Path) -> bool:
    """Whether the first line is JSON. One without an end is: the run has just begun to write, or was killed."""
    with file.open("rb") as lines:
        first = lines.readline()
    try:
        json.loads(first.strip() or b"null")
    except ValueError:
        return not first.endswith(b"\n")
    return True


def _read_jsonl(path: Path) -> Iterator[Entry]:
    """Read verl's file logger, which writes NaN and infinity as null.

    Other JSON lines (answers) and an incomplete last line are passed over.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line or b"null")
        except ValueError:
            if number == len(lines):  # the run is being written, or was killed
                return
            raise DataError(f"{path}, line {number} is not JSON; remove the line, or the file") from None
        if isinstance(record, dict) and set(record) == {"step", "data"} and isinstance(record["data"], dict):
            metrics = {name: math.nan if value is None else value for name, value in record["data"].items()}
            yield Entry(record["step"], metrics, f", line {number}")
        elif record is not None:
            return


def _read_state(path: Path) -> Iterator[Entry]:
    """Read the log of transformers.

    Each evaluation set has an entry, in which only the loss and the times bear the set's name; here all its metrics do.
    """
    try:
        for number, entry in enumerate(json.loads(path.read_text(encoding="utf-8"))["log_history"], 1):
            evaluated = _evaluation_set(entry)
            metrics = {_name_of_set(key, evaluated): value for key, value in entry.items() if key != "step"}
            yield Entry(entry["step"], metrics, f", entry {number} of log_history")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not what transformers writes ({error!r}); remove the file") from None


def _name_of_set(key: str, evaluated: str) -> str:
    """Our name of a metric: ``val-core/easy/score/mean@n`` for eval_reward of the evaluation set "easy"."""
    return _our_name(key).replace("/eval/", f"/{evaluated}/")


def _evaluation_set(entry: Mapping[str, object]) -> str:
    """The name of the set that an entry evaluates; "eval" if it does not say."""
    for key in entry:
        timed = re.fullmatch("eval_(.+)_runtime", key)
        if timed:
            return timed[1]
    return "eval"


def _progress(state: Path) -> tuple[float, bool]:
    """The last step in a trainer_state.json; of two at the same step, that of output_dir is the later one."""
    steps = [entry.step for entry in _read_state(state)]
    last = max((step for step in steps if isinstance(step, (int, float))), default=0)
    return last, not state.parent.name.startswith("checkpoint-")


def _read_tensorboard(path: Path) -> Iterator[Entry]:
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
                    yield Entry(event.step, {value.tag: float(array)})


_LOGGERS: dict[str, Callable[[Path], Iterator[Entry]]] = {  # in the order in which a folder is searched for them
    "*.jsonl": _read_jsonl,
    STATE: _read_state,
    "events.out.tfevents.*": _read_tensorboard,
}
