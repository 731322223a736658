"""A plugin of ms-swift for test_swift.py: a reward, and a CWGRPOTrainer that saves what reaches its loss."""

import os
from pathlib import Path
from typing import Any

import torch
from swift.rewards import ORM, orms
from swift.trainers import TrainerFactory

from cw_plugin.swift_integration import CWGRPOTrainer


class Reward(ORM):
    """A number that a test can compute again from the tokens."""

    def __call__(self, completions: list[str], response_token_ids: list[list[int]], **_: Any) -> list[float]:
        return [(sum(ids) % 17) / 4.0 for ids in response_token_ids]


class Watched(CWGRPOTrainer):
    """Saves each micro-batch as it reaches the loss."""

    seen = 0

    def _compute_loss_and_metrics(self, model: Any, model_inputs: dict[str, Any], grpo_batch: Any) -> Any:
        kept = {"step": self.state.global_step, "ids": model_inputs["input_ids"]}
        kept |= {name: getattr(grpo_batch, name) for name in ("completion_mask", "truncated_mask", "advantages")}
        out = Path(os.environ["SWIFT_TEST_OUT"])
        torch.save(kept, out / f"{self.accelerator.process_index}-{self.seen}.pt")
        self.seen += 1
        return super()._compute_loss_and_metrics(model, model_inputs, grpo_batch)


orms["of_tokens"] = Reward
TrainerFactory.TRAINER_MAPPING["grpo"] = "swift_plugin.Watched"
