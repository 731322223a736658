"""Loaded into verl's processes by VERL_USE_EXTERNAL_MODULES in the end-to-end tests.

It writes down what each update of the policy is trained on, from outside the plugin, as verl's trainer hands it to the
workers. It does not import the plugin, which verl has to find by itself.
"""

import functools
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


def _of_v1(trainer, batch):
    import transfer_queue

    fields = [*NAMES, "rm_scores", "uid"]
    data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    tensors = data.to_padded_tensor()
    _write_down(tensors, tensors["rm_scores"], data["uid"], trainer)


def _of_legacy(trainer, batch):
    _write_down(batch.batch, batch.batch["token_level_rewards"], batch.non_tensor_batch["uid"], trainer)


def _probe(look, trainer_class, module):
    """Look at the batch of each update. A plain function, because Ray copies the methods of an actor's class, and
    pickle would unwrap a proxy; it finds this one by its name."""
    trainer = getattr(module, trainer_class)
    update_actor = trainer._update_actor

    @functools.wraps(update_actor)
    def probed(self, batch, *args, **kwargs):
        look(self, batch)
        return update_actor(self, batch, *args, **kwargs)

    trainer._update_actor = probed


if os.environ.get("E2E_PROBE_DIR"):
    for module, trainer_class, look in (
        ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer", _of_v1),
        ("verl.trainer.ppo.ray_trainer", "RayPPOTrainer", _of_legacy),
    ):
        wrapt.register_post_import_hook(functools.partial(_probe, look, trainer_class), module)
