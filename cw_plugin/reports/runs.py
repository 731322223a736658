"""A run: its metrics from any logger of verl, TRL, OpenRLHF or SkyRL, its settings, and which method it is."""

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cw_plugin.configs import read_yaml
from cw_plugin.errors import DataError
from cw_plugin.files import files_in, in_order, refuse_several, split_name

REWARD, ENTROPY, NORM = "critic/score/mean", "actor/entropy", "actor/grad_norm"
# What a host calls a metric -> verl's name, which is ours. Other metrics, such as cw_grpo/, keep their names.
METRIC_NAMES = {
    # TRL, ms-swift: in trainer_state.json and, as train/reward, in other loggers
    "reward": REWARD, "entropy": ENTROPY, "grad_norm": NORM, "learning_rate": "actor/lr", "kl": "actor/kl_loss",
    "completions/mean_length": "response_length/mean",
    # their evaluations, with the rewards of cw_plugin.rewards.trl: eval_reward, eval/reward
    "eval/rewards/accuracy_reward/mean": "val-core/eval/acc/mean@n",
    "eval/rewards/format_reward/mean": "val-aux/eval/format/mean@n",
    "eval/reward": "val-core/eval/score/mean@n",
    # OpenRLHF, as train/... in TensorBoard; its reward and kl are called as TRL's
    "entropy_loss": ENTROPY, "actor_grad_norm": NORM, "actor_lr": "actor/lr", "response_length": "response_length/mean",
    "eval/eval_default_pass1": "val-core/eval/score/mean@n",
    # SkyRL; acc and format are of the environment cw_plugin.rewards.skyrl
    "reward/avg_raw_reward": REWARD, "policy/policy_entropy": ENTROPY, "policy/grad_norm": NORM,
    "policy/policy_lr": "actor/lr", "policy/policy_kl": "actor/kl_loss",
    "generate/avg_num_tokens": "response_length/mean",
    "eval/all/environment/acc": "val-core/eval/acc/mean@n",
    "eval/all/environment/format": "val-aux/eval/format/mean@n",
    "eval/all/avg_score": "val-core/eval/score/mean@n",
}  # fmt: skip
ARGUMENTS = "training_args.json"  # of CWGRPOTrainer, in TRL's output_dir or SkyRL's export_path
STATE = "trainer_state.json"  # of transformers, in output_dir and in each of its checkpoints
# What tells the files of a resumed run apart: metrics.2.jsonl, metrics-20261031-120000.jsonl (examples/).
_RESUMED = re.compile(r"\.\d+$|-\d{8}-\d{6}$")

Points = Iterator[tuple[Any, Mapping[str, Any], str]]  # step, metrics, and where it stands in the file


@dataclass(frozen=True)
class Run:
    """What a run's folder holds. Runs of one name are seeds of one method.

    Attributes:
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
        """By step, the mean over the validation sets of their accuracy."""
        sets = [name for name in self.metrics if name.startswith("val-core/") and "/acc/mean@" in name]
        return self.metrics[sets].dropna().mean(axis=1)

    @property
    def seed(self) -> Any:
        """nan if it is not known."""
        given = (self.config.get(name) for name in ("data.seed", "seed", "trainer.seed"))  # verl's, TRL's, SkyRL's
        return next((seed for seed in given if seed is not None), math.nan)

    @property
    def is_grpo(self) -> bool:
        """Whether it is plain GRPO: by its configuration, else by its name."""
        return (method_of(self.config) or self.name.upper()) == "GRPO"


def read_run(argument: str | Path) -> Run:
    """Read ``FOLDER`` or ``NAME=FOLDER``. Without a name, a run is called by its method, or as its folder is. A folder
    that is missing or has several runs, and a file that cannot be read, is a DataError."""
    name, path = split_name(argument)
    config = read_config(path)
    metrics, repeated = read_metrics(path)
    return Run(name or method_of(config) or path.resolve().stem, path, metrics, config, repeated)


def method_of(config: Mapping[str, Any]) -> str | None:
    """What the method of a configuration is called; None if it does not say."""
    # cw_kernel is in the settings of TRL's and SkyRL's runs
    estimator = "cw_grpo" if "cw_kernel" in config else config.get("algorithm.adv_estimator")
    loss = config.get("actor_rollout_ref.actor.policy_loss.loss_mode")
    scope, kernel = (config.get(f"cw_{key}") or config.get(f"algorithm.cw_grpo.{key}") for key in ("scope", "kernel"))
    if estimator == "cw_grpo" and kernel == "none":
        estimator = "grpo"
    parts = {"grpo": ["GRPO"], "cw_grpo": ["CW-GRPO"], None: []}.get(estimator, [str(estimator)])
    if estimator == "cw_grpo":
        parts += [f"kernel {kernel}"] * (kernel not in (None, "gaussian")) + ["batch"] * (scope == "batch")
    if loss not in (None, "vanilla"):
        parts = [*(part for part in parts if part != "GRPO"), "CW-GRPO in the loss" if loss == "cw_grpo" else str(loss)]
    return ", ".join(parts) or None


def all_metrics(runs: Sequence[Run]) -> pd.DataFrame:
    """Every value that any run has logged: a row for each, with the columns method, run (its place in ``runs``), seed,
    step, metric ("accuracy" is the mean over validation sets) and value, which is nan if it is not a finite number."""
    columns = ["method", "run", "seed", "step", "metric", "value"]
    if not runs:
        return pd.DataFrame(columns=columns)
    values = [run.metrics.assign(accuracy=run.accuracy).stack().dropna() for run in runs]
    frame = pd.concat(values, keys=range(len(runs)), names=["run", "step", "metric"]).rename("value").reset_index()
    method = frame.run.map([run.name for run in runs].__getitem__)
    seed = frame.run.map([run.seed for run in runs].__getitem__)
    value = frame.value.replace(math.inf, math.nan)
    return frame.assign(method=method, seed=seed, value=value)[columns]


class _Steps:
    """What the starts of one run have logged, in the order in which they did: ``rows`` is step -> metric -> value.

    A start that goes back to an earlier step continues from a checkpoint of it, or from the beginning. So everything
    after that step is of weights that were lost, and goes.
    """

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.repeated: set[int] = set()
        self._last = -1

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        if step < self._last:
            lost = [later for later in self.rows if later > step]
            self.repeated.update(lost)
            for later in lost:
                del self.rows[later]
        self._last = step
        row = self.rows.setdefault(step, {})
        for name, value in values.items():
            if type(value) not in (int, float):
                continue
            metric = _our_name(name)
            # A start may validate the checkpoint it begins with. transformers notes the epoch in every entry of a step.
            may_come_again = metric == "epoch" or metric.startswith(("val-", "eval/"))
            if metric in row and not may_come_again:
                self.repeated.add(step)
            is_finite = abs(value) < 1e308  # and float64 holds it
            row[metric] = value if is_finite else math.inf


def read_metrics(path: Path) -> tuple[pd.DataFrame, list[int]]:
    """A row for each step and a column for each metric, and the steps that were repeated, both as in :class:`Run`; both
    are empty if ``path`` holds no metrics.

    It is searched, with its subfolders, in this order: files of verl's file logger (``*.jsonl``), trainer_state.json of
    TRL, event files of TensorBoard. The numbers in their names tell which file of a resumed run is the later one,
    because copying changes modification times.
    """
    if not os.path.exists(path):
        raise DataError(f"{path} does not exist; give the folder of a run (or of its logger)")
    for pattern, read in _LOGGERS.items():
        files = [path] if path.is_file() and path.match(pattern) else sorted(files_in(path, pattern), key=in_order)
        if pattern == STATE and files:
            refuse_several(path, {_run_of(file) for file in files})
            files = [max(files, key=_progress)]  # each has the whole log of its run up to then
        steps = _Steps()
        runs = set()
        for file in files:
            for step, values, place in read(file):
                if not (type(step) is int or (type(step) is float and step.is_integer())):
                    raise DataError(f"{file}{place}: the step is {step!r}, not a whole number; remove the entry")
                runs.add(_run_of(file))
                steps.add(int(step), values)
        refuse_several(path, runs)
        if steps.rows:
            metrics = pd.DataFrame.from_dict(steps.rows, orient="index", dtype=float).sort_index()
            return metrics, sorted(steps.repeated)
    return pd.DataFrame(), []


def read_config(path: Path) -> dict[str, Any]:
    """The configuration that hydra left by dotted keys, or TRL's arguments; empty if there is neither."""
    found = files_in(path, ".hydra/config.yaml") or files_in(path, ARGUMENTS)
    return read_yaml(found[-1]) if found else {}  # hydra's folders are named by date and time


def _our_name(name: str) -> str:
    name = re.sub("^eval_", "eval/", name).removeprefix("train/")
    return METRIC_NAMES.get(name, name)


def _read_jsonl(path: Path) -> Points:
    """verl's file logger. Other JSON lines (answers) and an incomplete last line are passed over."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line or b"null")
        except ValueError:
            if number == len(lines):  # the run is being written, or was killed
                return
            raise DataError(f"{path}, line {number} is not JSON; remove the line, or the file") from None
        if isinstance(record, dict) and set(record) == {"step", "data"} and isinstance(record["data"], dict):
            yield record["step"], record["data"], f", line {number}"
        elif record is not None:
            return


def _read_state(path: Path) -> Points:
    """Each evaluation set has an entry, in which only the loss and the times bear the set's name; here all its metrics
    do."""
    try:
        for number, entry in enumerate(json.loads(path.read_text(encoding="utf-8"))["log_history"], 1):
            timed = [found[1] for key in entry if (found := re.fullmatch("eval_(.+)_runtime", key))]
            infix = f"/{(timed or ['eval'])[0]}/"
            values = {_our_name(key).replace("/eval/", infix): value for key, value in entry.items() if key != "step"}
            yield entry["step"], values, f", entry {number} of log_history"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not what transformers writes ({error!r}); remove the file") from None


def _progress(state: Path) -> tuple[float, bool]:
    """The last step in a trainer_state.json; of two at the same step, that of output_dir is the later one."""
    last = max((step for step, _, _ in _read_state(state) if isinstance(step, (int, float))), default=0)
    return last, not state.parent.name.startswith("checkpoint-")


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


_LOGGERS: dict[str, Callable[[Path], Points]]
_LOGGERS = {"*.jsonl": _read_jsonl, STATE: _read_state, "events.out.tfevents.*": _read_tensorboard}


def _run_of(file: Path) -> Path:
    """A key that all files of one run share, also if it was resumed."""
    if file.name == STATE:
        return file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent
    return file.parent / _RESUMED.sub("", file.stem) if file.suffix == ".jsonl" else file.parent
