"""Loaded into verl's processes by VERL_USE_EXTERNAL_MODULES in the end-to-end tests: writes down what the estimator
saw and returned at every step, from outside the plugin, at the name through which verl's trainer calls it. It does not
import the plugin, which verl has to find by itself."""

import inspect
import os
import time
from pathlib import Path

import torch
import wrapt


def _write_down(wrapped, instance, args, kwargs):
    called = inspect.signature(wrapped).bind(*args, **kwargs).arguments  # the plugin's hook calls by position
    data = called["data"]
    tensors = ("response_mask", "old_log_probs", "token_level_rewards")
    seen = {name: data.batch[name].clone() for name in tensors}
    seen |= {"uids": list(map(str, data.non_tensor_batch["uid"])), "estimator": str(called["adv_estimator"])}
    result = wrapped(*args, **kwargs)
    seen["advantages"] = result.batch["advantages"].clone()
    folder = Path(os.environ["E2E_PROBE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{time.time_ns()}.tmp"
    torch.save(seen, temporary)
    temporary.rename(temporary.with_suffix(".pt"))
    return result


def _legacy_alone(wrapped, instance, args, kwargs):
    data = args[0] if args else kwargs["data"]  # V1, which calls this function too, selects no responses
    return _write_down(wrapped, instance, args, kwargs) if "responses" in data.batch else wrapped(*args, **kwargs)


if os.environ.get("E2E_PROBE_DIR"):
    for module, function, wrapper in (
        ("verl.trainer.ppo.v1.trainer_base", "compute_advantage_for_multi_trajectories", _write_down),
        ("verl.trainer.ppo.ray_trainer", "compute_advantage", _legacy_alone),
    ):
        wrapt.register_post_import_hook(
            lambda host, name=function, around=wrapper: wrapt.wrap_function_wrapper(host, name, around), module
        )
