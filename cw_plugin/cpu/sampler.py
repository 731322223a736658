"""A replay buffer that looks for finished rollouts twenty times a second.

verl's polls every two seconds, which is nothing beside a GPU rollout and most of a step on a small CPU model. Selected
by ``trainer.v1.sampler.custom_sampler.path=pkg://cw_plugin.cpu.sampler`` and ``.name=QuickReplayBuffer``.
"""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer


class QuickReplayBuffer(ReplayBuffer):
    """verl's replay buffer with a poll interval of 0.05 seconds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.poll_interval = 0.05
