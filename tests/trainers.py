"""verl's own trainers, constructed as its task runners construct them, but without workers."""

from __future__ import annotations

from typing import Any

from hydra import compose, initialize_config_module
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.utils import Role

VALID = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "data.train_batch_size=8",
    "data.val_batch_size=1",
    "data.dataloader_num_workers=0",
    "trainer.device=cpu",
)


class Tokenizer:
    """Says a token by its number."""

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))

    def batch_decode(self, several: list[list[int]]) -> list[str]:
        return [self.decode(ids) for ids in several]


def composed(*overrides: str) -> Any:
    """verl's configuration, as main_ppo composes it."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [*VALID, *overrides])


def v1_trainer(*overrides: str) -> Any:
    """The trainer of ``trainer.use_v1=True`` before its workers start."""
    from verl.trainer.ppo.v1 import get_trainer_cls  # a verl up to 0.8 has none

    config = composed("trainer.use_v1=True", *overrides)
    return get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)


def legacy_trainer(*overrides: str) -> Any:
    """The trainer of ``trainer.use_v1=False``, or of a verl that has no other, before its workers start."""
    use_v1 = ["trainer.use_v1=False"] if "use_v1" in composed().trainer else []
    trainer = RayPPOTrainer(
        config=composed(*use_v1, *overrides),
        tokenizer=Tokenizer(),
        role_worker_mapping={Role.ActorRollout: None, Role.ActorRolloutRef: None},
        resource_pool_manager=None,
        train_dataset=list(range(8)),
        val_dataset=[0],
        collate_fn=list,
    )
    trainer.global_steps = 0
    return trainer
