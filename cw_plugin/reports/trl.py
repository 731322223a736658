"""Reads the metrics of TRL's runs, and gives them verl's names, so that tables and figures can show runs of both."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cw_plugin.errors import ReportError

STATE = "trainer_state.json"  # in output_dir and in each of its checkpoints, with everything that was logged until then

# TRL -> verl. Other metrics, such as cw_grpo/, have the same name in both, or exist only in TRL.
_TRAINING = {
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
}
_EVALUATION = {  # of cw_plugin.rewards.trl
    "rewards/accuracy_reward/mean": "val-core/eval/acc/mean@n",
    "rewards/format_reward/mean": "val-aux/eval/format/mean@n",
    "reward": "val-core/eval/score/mean@n",
}


def verl_names(values: dict[str, Any]) -> dict[str, Any]:
    """A step's metrics under verl's names; those that verl itself logged stay as they are.

    Args:
        values: by the names of trainer_state.json (``entropy``, ``eval_reward``), or of transformers' other loggers
            (``train/entropy``, ``eval/reward``).
    """
    renamed = {}
    for name, value in values.items():
        if name.startswith(("eval/", "eval_")):
            renamed[_EVALUATION.get(name[5:], f"eval/{name[5:]}")] = value
        else:
            plain = name.removeprefix("train/")
            renamed[_TRAINING.get(plain, plain)] = value
    return renamed


def run_of(path: Path) -> Path:
    """The output_dir that a trainer_state.json is of."""
    return path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent


def last_step(path: Path) -> float:
    """Order of a run's files: that of a later checkpoint holds more, and that of output_dir is written at the end."""
    _, _, step = path.parent.name.partition("checkpoint-")
    return int(step) if step.isdigit() else math.inf


def read_state(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Each entry of ``log_history``: its step, and its numbers under TRL's names."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["log_history"]
        for entry in entries:
            numbers = {key: float(value) for key, value in entry.items() if type(value) in (int, float)}
            yield int(numbers.pop("step")), numbers
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is not what transformers writes ({error!r}); remove the file") from None
