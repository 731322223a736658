"""A plugin of ms-swift for test_swift.py: a reward, and a CWGRPOTrainer that saves what reaches its loss.

What this CWGRPOTrainer gets from ms-swift is on a pretended device, whose messages take no tensor of the CPU.
"""

import os
from pathlib import Path
from typing import Any

import pretend_device
import pytest
import torch
from pretend_device import Pretend, back, on_device
from swift.rewards import ORM, orms
from swift.rlhf_trainers import GRPOTrainer
from swift.trainers import TrainerFactory

from cw_plugin.hosts.swift import CWGRPOTrainer


class Reward(ORM):
    """A number that a test can compute again from the tokens."""

    def __call__(self, completions: list[str], response_token_ids: list[list[int]], **_: Any) -> list[float]:
        return [(sum(ids) % 17) / 4.0 for ids in response_token_ids]


class SwiftOnDevice(GRPOTrainer):
    """Puts on the device what ms-swift has computed on the CPU."""

    def _postprocess_batch(self, samples: list[Any], batch_encoded_inputs: list[dict[str, Any]]) -> None:
        super()._postprocess_batch(samples, batch_encoded_inputs)
        self.move(on_device, batch_encoded_inputs)
        self.patch = pytest.MonkeyPatch()
        pretend_device.as_nccl(self.patch)

    def move(self, to: Any, batch_encoded_inputs: list[dict[str, Any]]) -> None:
        self._rewards_per_func, self.reward_weights = to(self._rewards_per_func), to(self.reward_weights)
        moved = {}
        for encoded in batch_encoded_inputs:
            encoded["model_inputs"] = to(dict(encoded["model_inputs"]))
            for name, value in vars(encoded["grpo_batch"]).items():
                moved[id(value)] = to(value)
                setattr(encoded["grpo_batch"], name, moved[id(value)])
        self._cw_computed = [(moved[id(log_probs)], to(entropies)) for log_probs, entropies in self._cw_computed]


class Watched(CWGRPOTrainer, SwiftOnDevice):
    """Takes it back, and saves each micro-batch as it reaches the loss."""

    seen = 0

    def _postprocess_batch(self, samples: list[Any], batch_encoded_inputs: list[dict[str, Any]]) -> None:
        with Pretend():
            super()._postprocess_batch(samples, batch_encoded_inputs)
        self.patch.undo()
        self.move(back, batch_encoded_inputs)

    def _compute_loss_and_metrics(self, model: Any, model_inputs: dict[str, Any], grpo_batch: Any) -> Any:
        kept = {"step": self.state.global_step, "ids": model_inputs["input_ids"]}
        kept |= {name: getattr(grpo_batch, name) for name in ("completion_mask", "truncated_mask", "advantages")}
        out = Path(os.environ["SWIFT_TEST_OUT"])
        torch.save(kept, out / f"{self.accelerator.process_index}-{self.seen}.pt")
        self.seen += 1
        return super()._compute_loss_and_metrics(model, model_inputs, grpo_batch)


orms["of_tokens"] = Reward
TrainerFactory.TRAINER_MAPPING["grpo"] = "swift_plugin.Watched"
