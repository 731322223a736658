"""A run: its metrics from any logger of verl, TRL, OpenRLHF or SkyRL, its settings, and which method it is."""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cw_plugin.errors import DataError
from cw_plugin.files import files_in, in_order, refuse_several, split_name
from cw_plugin.lab.configs import differences, read_yaml

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
ARGUMENTS = "training_args.json"  # of CWGRPOTrainer, in TRL's output_dir or SkyRL's export_path
STATE = "trainer_state.json"  # of transformers, in output_dir and in each of its checkpoints
# What tells the files of a resumed run apart: metrics.2.jsonl, metrics-20261031-120000.jsonl (examples/).
_RESUMED = re.compile(r"\.\d+$|-\d{8}-\d{6}$")

_SEEDS = ("data.seed", "seed", "trainer.seed")  # settings of verl, TRL and SkyRL

# Settings that say where a run is written, and nothing of what it is.
_WRITTEN = (
    "*_dir", "*run_name", "hub_*", "hydra", "ray_kwargs",
    "trainer.ckpt_path", "trainer.export_path", "trainer.log_path", "trainer.experiment_name", "trainer.project_name",
)  # fmt: skip
# Settings in which seeds of one method may differ.
SEED_OR_LENGTH = (
    "*seed", "trainer.total_*", "trainer.*_freq", "trainer.*_interval",
    "*.total_training_steps", "*max_training_steps", "max_steps", "num_train_epochs",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a run's folder holds. Runs of one name are seeds of one method.

    Attributes:
        name: from ``NAME=FOLDER``, else that of its method, else that of its folder.
        path: its folder, or the file of its logger.
        metrics: a column for each metric, under verl's name, and a row for each step, in order: the steps that the last
            model descends from. nan is what was not logged; inf, what was logged and is not a finite number.
        config: hydra's configuration by dotted keys, or TRL's arguments; empty if there is none.
        repeated: steps that were trained again after a restart, in order; ``metrics`` has them as trained last.
    """

    name: str
    path: Path
    metrics: pd.DataFrame
    config: dict[str, Any] = field(default_factory=dict)
    repeated: Sequence[int] = ()

    def series(self, metric: str) -> pd.Series:
        """The finite values of a metric by step; empty if there are none."""
        values = self.metrics.get(metric, pd.Series(dtype=float))
        return values[np.isfinite(values)]

    @property
    def accuracy(self) -> pd.Series:
        """By step, the mean over the validation sets of their accuracy.

        A run may go on with another number of answers, so that mean@4 of a set follows on its mean@1. Where a step has
        both, the later one counts.
        """
        columns: dict[str, list[str]] = {}  # by validation set
        for name in self.metrics:
            if name.startswith("val-core/") and "/acc/mean@" in name:
                columns.setdefault(name.split("/acc/mean@")[0], []).append(name)
        sets = {name: self.metrics[several].ffill(axis=1).iloc[:, -1] for name, several in columns.items()}
        return pd.DataFrame(sets, index=self.metrics.index).dropna().mean(axis=1)

    @property
    def seed(self) -> object:
        """The seed by its host's setting, nan if it is not known."""
        for name in _SEEDS:
            if self.config.get(name) is not None:
                return self.config[name]
        return math.nan

    @property
    def is_grpo(self) -> bool:
        """Whether it is plain GRPO: its settings say so, or its name does, and its settings have no weights."""
        method = method_of(self.config) or ""
        return method == "GRPO" or (self.name.upper() == "GRPO" and "CW-GRPO" not in method)


def read_run(argument: str | Path) -> Run:
    """Read ``FOLDER`` or ``NAME=FOLDER``. Without a name, a run is called by its method, or as its folder is.

    A folder that is missing or has several runs, and a file that cannot be read, is a DataError.
    """
    name, path = split_name(argument)
    config = read_config(path)
    log = read_metrics(path)
    return Run(name or method_of(config) or _name_of_place(path), path, log.metrics, config, log.repeated)


def _name_of_place(path: Path) -> str:
    """The name of a folder; of a logger's file, unless it is called as in every run; then that of its folder."""
    place = path.resolve()
    if not place.is_file():
        return place.name
    is_usual = place.stem.startswith(("metrics", "trainer_state", "events.out"))
    return place.parent.name if is_usual else place.stem


def read_config(path: Path) -> dict[str, Any]:
    """Read the configuration that hydra left, by dotted keys, or TRL's arguments; empty if there is neither."""
    files = files_in(path, ".hydra/config.yaml") or files_in(path, ARGUMENTS)
    return read_yaml(files[-1]) if files else {}  # hydra's folders are named by date and time


def method_of(config: Mapping[str, Any]) -> str | None:
    """Name the method of a configuration; None if it does not say."""
    loss = config.get("actor_rollout_ref.actor.policy_loss.loss_mode")
    parts = _estimator(config)
    if loss not in (None, "vanilla"):
        parts = [part for part in parts if part != "GRPO"]  # the method is called by its loss alone
        parts.append("CW-GRPO in the loss" if loss == "cw_grpo" else str(loss))
    return ", ".join(parts) or None


def _estimator(config: Mapping[str, Any]) -> list[str]:
    """The name of the advantage estimator, and those of its options that are not the default."""
    estimator = config.get("algorithm.adv_estimator")
    if "cw_kernel" in config:  # in the settings of TRL's and SkyRL's runs
        estimator = "cw_grpo"
    if estimator is None:
        return []
    kernel = config.get("cw_kernel") or config.get("algorithm.cw_grpo.kernel")
    if estimator == "grpo" or (estimator == "cw_grpo" and kernel == "none"):
        return ["GRPO"]
    if estimator != "cw_grpo":
        return [str(estimator)]
    parts = ["CW-GRPO"]
    if kernel not in (None, "gaussian"):
        parts.append(f"kernel {kernel}")
    if (config.get("cw_scope") or config.get("algorithm.cw_grpo.scope")) == "batch":
        parts.append("batch")
    return parts


def differing(configs: Sequence[Mapping[str, Any]], ignored: Sequence[str] = ()) -> list[str]:
    """List the settings in which configurations differ, besides where a run is written.

    Args:
        configs: settings by dotted keys. Empty ones are left out.
        ignored: patterns of settings that may differ, too.
    """
    known = [config for config in configs if config]
    keys: dict[str, None] = {}  # in order, each once
    for config in known[1:]:
        keys |= dict.fromkeys(differences(known[0], config, (*_WRITTEN, *ignored)))
    return list(keys)


def all_metrics(runs: Sequence[Run]) -> pd.DataFrame:
    """Put together every value that any run has logged.

    Returns:
        A row for each value, with the columns method; run, its place in ``runs``; seed; step; metric, where "accuracy"
        is the mean over validation sets; and value, which is nan if it is not a finite number.
    """
    columns = ["method", "run", "seed", "step", "metric", "value"]
    if not runs:
        return pd.DataFrame(columns=columns)
    values = [run.metrics.assign(accuracy=run.accuracy).stack().dropna() for run in runs]
    frame = pd.concat(values, keys=range(len(runs)), names=["run", "step", "metric"]).rename("value").reset_index()
    method = frame.run.map(lambda place: runs[place].name)
    seed = frame.run.map(lambda place: runs[place].seed)
    value = frame.value.replace(math.inf, math.nan)
    return frame.assign(method=method, seed=seed, value=value)[columns]


class Entry(NamedTuple):
    """What a logger wrote for one step, and where it stands in the file."""

    step: object
    metrics: Mapping[str, object]
    place: str = ""


class Log(NamedTuple):
    """All metrics of a run, and its repeated steps, both as in :class:`Run`."""

    metrics: pd.DataFrame
    repeated: list[int]


class _Steps:
    """What the starts of one run have logged, in the order in which they did: ``rows`` is step -> metric -> value.

    A start that goes back to an earlier step continues from a checkpoint of it, or from the beginning. So everything
    after that step is of weights that were lost, and goes.
    """

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.repeated: set[int] = set()
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
                self.repeated.add(step)
            row[metric] = number

    def _lose_after(self, step: int) -> None:
        lost = [later for later in self.rows if later > step]
        self.repeated.update(lost)
        for later in lost:
            del self.rows[later]


def read_metrics(path: Path) -> Log:
    """Read the metrics of a run; without a row if ``path`` holds none.

    It is searched, with its subfolders, in this order: files of verl's file logger (``*.jsonl``), trainer_state.json of
    TRL, event files of TensorBoard. The numbers in their names tell which file of a resumed run is the later one,
    because copying changes modification times.
    """
    if not os.path.exists(path):  # unlike Path.exists, it takes a name that is too long
        raise DataError(f"{path} does not exist; give the folder of a run (or of its logger)")
    for pattern, read in _LOGGERS.items():
        steps = _Steps()
        runs = set()
        for file in _log_files(path, pattern):
            for entry in read(file):
                step = _whole_number(entry, file)
                runs.add(_run_of(file))
                steps.add(step, entry.metrics)
        refuse_several(path, runs)
        if steps.rows:
            metrics = pd.DataFrame.from_dict(steps.rows, orient="index", dtype=float).sort_index()
            return Log(metrics, sorted(steps.repeated))
    return Log(pd.DataFrame(), [])


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
    if file.suffix == ".jsonl":
        return file.parent / _RESUMED.sub("", file.stem)
    return file.parent


def _logged(value: object) -> float | None:
    """A value that was logged: inf if it is not finite, None if it is no number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    is_finite = abs(value) < 1e308  # and float64 holds it
    return value if is_finite else math.inf


def _our_name(name: str) -> str:
    without_prefix = re.sub("^eval_", "eval/", name).removeprefix("train/")
    return METRIC_NAMES.get(without_prefix, without_prefix)


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
