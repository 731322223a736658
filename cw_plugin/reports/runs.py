"""A run: its metrics, its settings, and which method it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cw_plugin.errors import DataError, first_line
from cw_plugin.files import expanded
from cw_plugin.reports.metrics import accuracy_metrics, files_in, read_metrics
from cw_plugin.settings import flat

ARGUMENTS = "training_args.json"  # of CWGRPOTrainer, in output_dir


@dataclass(frozen=True)
class Run:
    """What a run's folder holds.

    Attributes:
        name: of the method; runs of one name are its seeds.
        path: the folder.
        metrics: a column for each metric, under verl's name; a row for each step, in order. What was not logged, or is
            not finite, is nan.
        config: hydra's configuration by dotted keys, or TRL's arguments; empty if there is none.
    """

    name: str
    path: Path
    metrics: pd.DataFrame
    config: dict[str, Any] = field(default_factory=dict)

    def series(self, metric: str) -> pd.Series:
        """The values of a metric by step; empty if it was not logged."""
        return self.metrics.get(metric, pd.Series(dtype=float)).dropna()

    @property
    def accuracy(self) -> pd.Series:
        """By step, the mean over the validation sets of their accuracy."""
        return self.metrics[accuracy_metrics(self.metrics)].dropna().mean(axis=1)

    @property
    def seed(self) -> Any:
        """nan if it is not known."""
        found = self.config.get("data.seed", self.config.get("seed"))
        return math.nan if found is None else found

    @property
    def model(self) -> str | None:
        """The path of the model that it starts from; None if it is not known."""
        return self.config.get("actor_rollout_ref.model.path", self.config.get("model"))

    @property
    def is_grpo(self) -> bool:
        """Whether it is plain GRPO: by its configuration, else by what became of extreme tokens, else by its name."""
        if method := method_of(self.config):
            return method == "GRPO"
        kept, held = (self.series(f"cw_grpo/{key}") for key in ("effective_sample_share", "extreme_gradient_share"))
        return bool((kept > 1 - 1e-6).all() and ((held > 0).any() or self.name.lower() == "grpo"))


def method_of(config: Mapping[str, Any]) -> str | None:
    """What the method of a configuration is called; None if it does not say."""
    estimator = "cw_grpo" if "cw_kernel" in config else config.get("algorithm.adv_estimator")  # TRL's, verl's
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


def read_run(argument: str | Path) -> Run:
    """Read ``FOLDER`` or ``NAME=FOLDER``. Without a name, a run is called by its method, or as its folder is.

    Raises:
        DataError: the folder has several runs, or a file that cannot be read.
    """
    name, path = split_name(argument)
    config = read_config(path)
    return Run(name or method_of(config) or path.resolve().stem, path, read_metrics(path), config)


def split_name(argument: str | Path) -> tuple[str | None, Path]:
    """Split ``NAME=FOLDER``; the name is None if there is none."""
    text = str(argument)
    if "=" not in text or Path(text).exists():
        return None, expanded(text)
    name, _, folder = text.partition("=")
    if not name:
        raise DataError(f"{text!r} has no name before the =; write NAME=FOLDER or FOLDER")
    return name, expanded(folder)


def read_config(path: Path) -> dict[str, Any]:
    """The configuration that hydra left by dotted keys, or TRL's arguments; empty if there is neither.

    Raises:
        DataError: it cannot be read, or is no mapping.
    """
    from omegaconf import OmegaConf
    from yaml import YAMLError

    # hydra's folders are named by date and time
    found = files_in(path, ".hydra/config.yaml")[-1:] or files_in(path, ARGUMENTS)[-1:]
    for file in found:
        try:
            config = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
        except (YAMLError, OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read ({first_line(error)}); remove it, or restore it") from None
        if not isinstance(config, dict):
            raise DataError(f"{file} is a {type(config).__name__}, not a mapping of settings; remove it, or restore it")
        return flat(config)
    return {}
