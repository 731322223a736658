"""A run: its metrics, its settings, and which method it is."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from cw_plugin.lab.arguments import split_name
from cw_plugin.lab.configs import differences, flat, read_yaml
from cw_plugin.lab.reports.loggers import config_of_trackio, config_of_wandb, run_of_trackio
from cw_plugin.lab.reports.metrics import WANDB, log_files, read_metrics
from cw_plugin.lab.result_files import files_in
from cw_plugin.registry import BUILT_IN, load

# In all_metrics: the mean over validation sets, and that of a reward where not all runs have an accuracy.
ACCURACY, VALIDATION_REWARD = "val-core/accuracy", "val-core/reward"
# What a validation logs of a set, in the order in which it is taken. verl names a reward that is a number "reward".
_MEASURES = ("acc", "reward", "score")
ARGUMENTS = "training_args.json"  # of CWGRPOTrainer, in TRL's output_dir or SkyRL's export_path

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
    """What the folder of a training run holds. Runs of one name are seeds of one method."""

    name: str  # from NAME=FOLDER, else that of its method, else that of its folder
    path: Path  # its folder, or the file of its logger
    metrics: pd.DataFrame  # as :func:`.metrics.read_metrics` returns them
    config: dict[str, Any]  # hydra's configuration by dotted keys, or TRL's arguments; empty if there is none
    is_named: bool  # whether its name is from NAME=FOLDER

    def series(self, metric: str) -> pd.Series:
        """The finite values of a metric by step; empty if there are none."""
        values = self.metrics.get(metric, pd.Series(dtype=float))
        return values[np.isfinite(values)]

    def validation(self, measure: str) -> pd.DataFrame:
        """A measure, such as ``acc``, of each validation set: a column for each set, a row for each step.

        A run may go on with another number of answers, so that mean@4 of a set follows on its mean@1. Where a step has
        both, the later one counts. Beside an accuracy, verl logs the reward as val-aux.
        """
        aux, core = (self.metrics.filter(regex=f"^val-{part}/.*/{measure}/mean@") for part in ("aux", "core"))
        columns = pd.concat([aux, core], axis=1)
        sets = "val-core/" + columns.columns.str.extract(f"^val-\\w+/(.*)/{measure}/mean@", expand=False)
        return columns.T.groupby(sets, sort=False).last().T

    @property
    def seed(self) -> object:
        """The seed by its host's setting, nan if it is not known."""
        known = [self.config[name] for name in _SEEDS if self.config.get(name) is not None]
        return known[0] if known else math.nan

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
    metrics = read_metrics(path)
    config = _read_config(path)
    place = path.resolve()
    if place.stem == "metrics":  # as in every run
        place = place.parent
    of_place = place.stem if place.is_file() else place.name
    return Run(name or method_of(config) or of_place, path, metrics, config, is_named=name is not None)


def _read_config(path: Path) -> dict[str, Any]:
    """Read the configuration that hydra left, by dotted keys, or TRL's arguments, or that a logger was given.

    It is empty if there is none.
    """
    if trackio := run_of_trackio(path):
        return flat(config_of_trackio(*trackio))
    files = files_in(path, ".hydra/config.yaml") or files_in(path, ARGUMENTS)
    if files:
        return read_yaml(files[-1])  # hydra's folders are named by date and time
    logs = log_files(path, WANDB)
    return flat(config_of_wandb(logs[-1])) if logs else {}


def method_of(config: Mapping[str, Any]) -> str | None:
    """Name the method of a configuration, with those of its options that are not the default; None if it is unknown."""
    of_trl = config.get("cw_weights")  # in the settings of TRL's and SkyRL's runs, too
    estimator = config.get("algorithm.adv_estimator") if of_trl is None else "cw_grpo"
    weights = of_trl or config.get("algorithm.cw_grpo.weights") or "gaussian"
    scope = config.get("cw_scope") or config.get("algorithm.cw_grpo.scope")
    advantages = config.get("algorithm.cw_grpo.estimator") or "grpo"
    loss = config.get("actor_rollout_ref.actor.policy_loss.loss_mode") or "vanilla"
    is_grpo = estimator == "grpo" or (estimator == "cw_grpo" and weights == "none")
    parts = []
    if estimator == "cw_grpo" and not is_grpo:
        parts.append("CW-GRPO" if weights == "gaussian" else f"GRPO with {weights} weights")
        parts += [f"{name}={value}" for name, value in _other_settings(config, weights).items()]
        if advantages != "grpo":
            parts.append(f"advantages of {advantages}")
        if scope == "batch":
            parts.append("batch")
    elif estimator is not None and not is_grpo:
        parts.append(str(estimator))
    if loss != "vanilla":
        parts.append("CW-GRPO in the loss" if loss == "cw_grpo" else str(loss))
    if is_grpo and not parts:
        parts.append("GRPO")
    return ", ".join(parts) or None


def _other_settings(config: Mapping[str, Any], weights: str) -> dict[str, Any]:
    """The settings of a weighting, by name, that are not its defaults; all of them where torch is not installed."""
    has_torch = importlib.util.find_spec("torch") is not None  # which the modules of weightings import
    defaults = load(weights).values if weights in BUILT_IN and has_torch else {}
    prefixes = ("cw_settings.", "algorithm.cw_grpo.settings.")
    given = {key.removeprefix(prefix): config[key] for prefix in prefixes for key in config if key.startswith(prefix)}
    return {name: value for name, value in sorted(given.items()) if defaults.get(name) != value}


def differing(configs: Sequence[Mapping[str, Any]], ignored: Sequence[str] = ()) -> list[str]:
    """List the settings, by dotted keys, in which configurations differ, besides where a run is written.

    Settings that match an ``ignored`` pattern may differ, too. Empty configurations are left out.
    """
    known = [config for config in configs if config]
    keys: dict[str, None] = {}  # in order, each once
    for config in known[1:]:
        keys |= dict.fromkeys(differences(known[0], config, (*_WRITTEN, *ignored)))
    return list(keys)


class Validation(NamedTuple):
    """By what runs can be compared on validation."""

    measure: str  # the first of acc, reward and score that all runs which were validated have of a set
    sets: list[str]  # those of which they all have it
    others: list[str]  # those of which a run lacks it


def validation_of(runs: Sequence[Run]) -> Validation:
    """By what these runs can be compared; by no set if they share none."""
    validated = [run for run in runs if any(len(run.validation(measure).columns) for measure in _MEASURES)]
    every = {name for run in validated for measure in _MEASURES for name in run.validation(measure)}
    for measure in _MEASURES:
        common = every.intersection(*(run.validation(measure) for run in validated))
        if common:
            return Validation(measure, sorted(common), sorted(every - common))
    return Validation("acc", [], sorted(every))


def all_metrics(runs: Sequence[Run]) -> pd.DataFrame:
    """Put together every value that any run has logged.

    Returns:
        A row for each value, with the columns method; run, its place in ``runs``; seed; step; metric; and value, which
        is nan if it is not a finite number. The metric ACCURACY, or VALIDATION_REWARD, is the mean over the validation
        sets that all runs have, at steps that have all of these.
    """
    columns = ["method", "run", "seed", "step", "metric", "value"]
    if not runs:
        return pd.DataFrame(columns=columns)
    validation = validation_of(runs)
    of_runs = [run.validation(validation.measure).reindex(columns=validation.sets) for run in runs]
    finite = pd.concat(of_runs).replace(math.inf, math.nan)
    is_share = not ((finite < 0) | (finite > 1)).any(axis=None)  # verl calls any reward acc that is a number
    name = ACCURACY if validation.measure == "acc" and is_share else VALIDATION_REWARD
    values = []
    for run, of_sets in zip(runs, of_runs, strict=True):
        mean = of_sets.dropna().mean(axis=1)
        values.append(run.metrics.assign(**{name: mean}).stack().dropna())
    frame = pd.concat(values, keys=range(len(runs)), names=["run", "step", "metric"]).rename("value").reset_index()
    method = frame.run.map(lambda place: runs[place].name)
    seed = frame.run.map(lambda place: runs[place].seed)
    value = frame.value.replace(math.inf, math.nan)
    return frame.assign(method=method, seed=seed, value=value)[columns]
