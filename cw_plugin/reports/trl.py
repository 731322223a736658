"""Reads the metrics and arguments of TRL's runs under verl's names, so that tables and figures show runs of both."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cw_plugin.errors import ReportError

STATE = "trainer_state.json"  # in output_dir and in each of its checkpoints, with everything that was logged until then
ARGUMENTS = "training_args.json"  # in output_dir, by CWGRPOTrainer

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


_RUNTIME = re.compile("eval_(.+)_runtime")


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
    """Each entry of ``log_history``: its step, and its numbers under TRL's names.

    Of several evaluation sets each has an entry, in which only the loss and the times bear the set's name. There all
    get it, under verl's names.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["log_history"]
        for entry in entries:
            numbers = {key: float(value) for key, value in entry.items() if type(value) in (int, float)}
            step = int(numbers.pop("step"))
            if found := next(filter(None, map(_RUNTIME.fullmatch, numbers)), None):
                numbers = {
                    key.replace("eval", found[1] if key.startswith("val-") else f"eval/{found[1]}", 1): value
                    for key, value in verl_names(numbers).items()
                }
            yield step, numbers
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is not what transformers writes ({error!r}); remove the file") from None


# verl's names of TRL's types of loss that average as verl does.
_AGGREGATION = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm"}
# Arguments that say where and on what a run is trained, how long, and what it writes; and those that are translated.
_LEFT_OUT = (
    "*_dir", "run_name", "project", "hub_*", "push_to_hub*", "resume_*", "report_to", "disable_tqdm", "trackio_*",
    "log_*", "logging_*", "save_*", "load_*", "eval_*", "do_*", "*_eval", "*_eval_*", "metric_for_*", "greater_is_*",
    "num_train_epochs", "use_cpu", "local_rank", "ddp_*", "fsdp*", "deepspeed*", "accelerator_config", "parallelism_*",
    "gradient_checkpointing*", "dataloader_*", "skip_memory_metrics", "vllm_server_*", "vllm_gpu_*", "vllm_tensor_*",
    "vllm_group_port", "ds3_*", "num_completions_to_print", "cw_record_*", "cw_entropy_*",
    "model", "learning_rate", "max_steps", "warmup_*", "max_*_length", "temperature", "num_generations", "loss_type",
    "beta", "seed", "data_seed", "cw_scope", "cw_kernel",
    "per_device_*", "*_batch_size", "gradient_accumulation_steps", "steps_per_generation",
)  # fmt: skip


def read_arguments(path: Path) -> dict[str, Any]:
    """The arguments that CWGRPOTrainer has written, as verl's configuration has them; the others under ``trl``."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        group, batch = given["num_generations"], given["generation_batch_size"]
        update = batch // given["steps_per_generation"] * given["gradient_accumulation_steps"]
        steps, warmup = given["max_steps"], given["warmup_steps"]
        actor = {
            "optim": {
                "lr": given["learning_rate"],
                "lr_warmup_steps_ratio": warmup / steps if warmup >= 1 else warmup or given.get("warmup_ratio") or 0.0,
            },
            "ppo_mini_batch_size": update // group,
            "loss_agg_mode": _AGGREGATION.get(given["loss_type"], f"{given['loss_type']} (TRL)"),
            "use_kl_loss": given["beta"] > 0,
            "kl_loss_coef": given["beta"],
        }
        return {
            "algorithm": {
                "adv_estimator": "cw_grpo",
                "cw_grpo": {
                    name: given.get(f"cw_{name}") for name in ("scope", "kernel", "entropy_low", "entropy_high")
                },
            },
            "data": {
                "train_batch_size": batch // group,
                "max_prompt_length": given.get("max_prompt_length"),
                "max_response_length": given["max_completion_length"],
                "seed": given["seed"],
                "order_seed": given["data_seed"],
            },
            "actor_rollout_ref": {
                "model": {"path": given["model"]},
                "actor": actor,
                "rollout": {"temperature": given["temperature"], "n": group},
            },
            "trainer": {"total_training_steps": steps},
            "trl": {key: value for key, value in given.items() if not any(fnmatch(key, one) for one in _LEFT_OUT)},
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"{path} is not what CWGRPOTrainer writes ({error!r}); remove the file") from None
