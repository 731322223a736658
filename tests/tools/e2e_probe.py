"""Loaded into verl's processes by VERL_USE_EXTERNAL_MODULES in the end-to-end tests.

It writes down what each update of the policy is trained on, from outside the plugin, as verl's trainer hands it to the
workers. It does not import the plugin, which verl has to find by itself.
"""

import os
import time
from pathlib import Path

import torch
import wrapt

NAMES = ("response_mask", "old_log_probs", "advantages")


def _write_down(tensors, rewards, uids, trainer):
    seen = {name: tensors[name].clone() for name in NAMES}
    seen |= {"token_level_rewards": rewards.clone(), "uids": list(map(str, uids))}
    seen["estimator"] = str(trainer.config.algorithm.adv_estimator)
    folder = Path(os.environ["E2E_PROBE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{time.time_ns()}.tmp"
    torch.save(seen, temporary)
    temporary.rename(temporary.with_suffix(".pt"))


def _of_v1(wrapped, trainer, args, kwargs):
    import transfer_queue

    batch = args[0] if args else kwargs["batch"]
    fields = [*NAMES, "rm_scores", "uid"]
    data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    tensors = data.to_padded_tensor()
    _write_down(tensors, tensors["rm_scores"], data["uid"], trainer)
    return wrapped(*args, **kwargs)


def _of_legacy(wrapped, trainer, args, kwargs):
    data = args[0] if args else kwargs["batch"]
    _write_down(data.batch, data.batch["token_level_rewards"], data.non_tensor_batch["uid"], trainer)
    return wrapped(*args, **kwargs)


if os.environ.get("E2E_PROBE_DIR"):
    for module, method, wrapper in (
        ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._update_actor", _of_v1),
        ("verl.trainer.ppo.ray_trainer", "RayPPOTrainer._update_actor", _of_legacy),
    ):
        wrapt.register_post_import_hook(
            lambda host, name=method, around=wrapper: wrapt.wrap_function_wrapper(host, name, around), module
        )
