"""Reads what a run has logged, with any logger of verl, TRL, ms-swift, OpenRLHF or SkyRL, under verl's names."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.reports import loggers
from cw_plugin.lab.result_files import files_in, in_order, refuse_several, require_path

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
WANDB = "run-*.wandb"  # of Weights & Biases


def read_metrics(path: Path) -> pd.DataFrame:
    """Read the metrics of a run; without a row if ``path`` holds none.

    A folder is searched, with its subfolders, in this order: files of verl's file logger (``*.jsonl``),
    trainer_state.json of TRL, event files of TensorBoard, files of Weights & Biases. The numbers in their names tell
    which file of a resumed run is the later one, because copying changes modification times. The file of any of these
    loggers, a table (CSV or parquet), and a run of trackio (``PROJECT.db/RUN``) are taken as they are.

    Returns:
        A column for each metric, and a row for each step, in order: the steps that the last model descends from. nan
        is what was not logged; inf, what was logged and is not a finite number.
    """
    if trackio := loggers.run_of_trackio(path):
        return _table(loggers.read_trackio(*trackio), path)
    require_path(path)
    if path.suffix in (".csv", ".parquet") and path.is_file():
        return _table(loggers.read_table(path), path)
    for pattern, read in _LOGGERS.items():
        logs = {file: _table(read(file), file) for file in log_files(path, pattern)}
        starts = {file: log for file, log in logs.items() if len(log.columns)}
        refuse_several(path, {_run_of(file) for file in starts})
        if pattern == STATE and starts:  # each has the log of the whole run up to then
            return max(reversed(starts.values()), key=lambda log: int(log.index.max()))
        if starts:
            return _joined(list(starts.values()))
    return pd.DataFrame()


def log_files(path: Path, pattern: str) -> list[Path]:
    """The files of a run's logger, the earlier start first."""
    if path.is_file():
        return [path] if path.match(pattern) else []
    # Weights & Biases has the date in the name of a run's folder, after "run-" or "offline-run-".
    return sorted(files_in(path, pattern), key=lambda file: in_order(Path(str(file).replace("offline-run-", "run-"))))


def _joined(starts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Put together what the starts of one run have logged, the earlier one first.

    A start goes on from a checkpoint, which it may validate anew, or from the beginning. What an earlier start has
    trained after that is of weights that were lost, and goes.
    """
    metrics = starts[0]
    for start in starts[1:]:
        kept = metrics.loc[: start.index.min()]
        metrics = pd.concat([kept, start]).groupby(level=0).last()
    return metrics


def _run_of(file: Path) -> Path:
    """A key that all files of one run share, also if it was resumed."""
    if file.name == STATE:
        return file.parent.parent if file.parent.name.startswith("checkpoint-") else file.parent
    if file.suffix == ".wandb":  # the same file in another folder for each start
        return file.parents[1] / file.name
    if file.suffix != ".jsonl":
        return file.parent
    name = re.sub(r"-\d{8}-\d{6}$", "", file.stem)  # metrics-20261031-120000.jsonl: one for each start
    base = re.sub(r"\.\d+$", "", name)  # metrics.2.jsonl was metrics.jsonl until another start needed that name
    # Without qwen2.1.jsonl, the number in qwen2.5.jsonl is not that of a start of qwen2.jsonl.
    is_start = base == "metrics" or all(file.with_name(f"{base}{end}.jsonl").exists() for end in ("", ".1"))
    return file.parent / (base if is_start else name)


def _table(logged: Iterable[loggers.Entry], source: Path) -> pd.DataFrame:
    """A row for each step, a column for each metric under our name, of what was logged in this order."""
    rows: dict[int, dict[str, float]] = {}
    for at, metrics in logged:
        found = next((metrics[name] for name in loggers.STEPS_OF_TRAINING if name in metrics), at)
        step = _number(found)
        if step is None or not step.is_integer():
            raise DataError(f"{source} has the step {found!r}, which is no whole number; correct it, or remove it")
        row = {_our_name(name): number for name, value in metrics.items() if (number := _number(value)) is not None}
        if row.keys() & rows.get(int(step), {}).keys():  # a later start trains it anew; what came after it was lost
            rows = {earlier: rows[earlier] for earlier in rows if earlier <= step}
        rows.setdefault(int(step), {}).update(row)
    return pd.DataFrame.from_dict(rows, orient="index", dtype=float).sort_index()


def _number(value: Any) -> float | None:
    """What was logged, as a number; inf if it is not finite, which loggers also write as null or a text; else None."""
    try:
        number = math.inf if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else math.inf


def _our_name(name: str) -> str:
    name = re.sub("^eval_", "eval/", name).removeprefix("train/")
    name = re.sub("^actor/cw_grpo/", "cw_grpo/", name)  # of verl's policy loss, which verl logs among the actor's
    name = re.sub("^eval/eval_(.+)_pass1$", r"val-core/\1/score/mean@n", name)  # OpenRLHF's, of each of its datasources
    return METRIC_NAMES.get(name, name)


def _read_state(file: Path) -> list[loggers.Entry]:
    """Read the log of transformers."""
    try:
        history = json.loads(file.read_bytes())["log_history"]
        return [(entry["step"], _named(entry)) for entry in history]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is not what transformers writes ({error!r}); remove the file") from None


def _named(entry: Mapping[str, object]) -> dict[str, object]:
    """An entry of transformers under our names, such as ``val-core/easy/score/mean@n`` for eval_reward.

    Each evaluation set has an entry, in which only the loss and the times bear the set's name; here all its metrics do.
    """
    timed = [re.fullmatch("eval_(.+)_runtime", key) for key in entry]
    evaluated = next((match[1] for match in timed if match), "eval")
    return {_our_name(key).replace("/eval/", f"/{evaluated}/"): entry[key] for key in entry if key != "step"}


# In the order in which a folder is searched for them.
_LOGGERS: dict[str, Callable[[Path], Iterable[loggers.Entry]]] = {
    "*.jsonl": loggers.read_jsonl,
    STATE: _read_state,
    "events.out.tfevents.*": loggers.read_tensorboard,
    WANDB: loggers.read_wandb,
}
