"""Loaded into verl's processes by VERL_USE_EXTERNAL_MODULES in the end-to-end tests: writes down what the estimator
saw and returned at every step, from outside the plugin, at the name through which verl's trainer calls it. It does not
import the plugin, which verl has to find by itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import wrapt


def _write_down(wrapped, instance, args, kwargs):
    data = args[0] if args else kwargs["data"]
    seen = {
        "uids": [str(uid) for uid in data.non_tensor_batch["uid"]],
        "batch_keys": list(kwargs.get("batch_keys", ())),
        "response_mask": data.batch["response_mask"].clone(),
        "old_log_probs": data.batch["old_log_probs"].clone(),
        "token_level_rewards": data.batch["token_level_rewards"].clone(),
        "estimator": str(kwargs["adv_estimator"]),
    }
    result = wrapped(*args, **kwargs)
    seen["advantages"] = result.batch["advantages"].clone()
    folder = Path(os.environ["E2E_PROBE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{time.time_ns()}.tmp"
    torch.save(seen, temporary)
    temporary.rename(temporary.with_suffix(".pt"))
    return result


def _of_legacy_alone(wrapped, instance, args, kwargs):
    data = args[0] if args else kwargs["data"]  # V1, which calls this function too, selects no responses
    return _write_down(wrapped, instance, args, kwargs) if "responses" in data.batch else wrapped(*args, **kwargs)


def _install(trainer_base):
    wrapt.wrap_function_wrapper(trainer_base, "compute_advantage_for_multi_trajectories", _write_down)


def _install_legacy(ray_trainer):
    wrapt.wrap_function_wrapper(ray_trainer, "compute_advantage", _of_legacy_alone)


if os.environ.get("E2E_PROBE_DIR"):
    wrapt.register_post_import_hook(_install, "verl.trainer.ppo.v1.trainer_base")
    wrapt.register_post_import_hook(_install_legacy, "verl.trainer.ppo.ray_trainer")
