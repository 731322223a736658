"""Trains the quickstart's small model with CWGRPOTrainer, and keeps what reached the loss; used by the tests of TRL.

As a program it is one process of several: python -m torch.distributed.run ... trl_training.py OUT JSON_OPTIONS
"""

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer

MODEL = Path(__file__).parents[2] / "examples" / "cpu" / "model"
QUESTIONS = ["What is 3 + 4?", "Compute 9 - 5.", "Ann has 7 apples and gets 8 more. How many now?", "What is 20 - 6?"]


def prompts(questions: list[str] = QUESTIONS) -> Dataset:
    return Dataset.from_list([{"prompt": [{"role": "user", "content": question}]} for question in questions])


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A number that a test can compute again from the tokens; it differs among the responses to a prompt."""
    return [(sum(ids) % 17) / 4.0 for ids in completion_ids]


def every_third_unscored(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    return [reward([ids])[0] if sum(ids) % 3 else None for ids in completion_ids]


def two_thirds_unscored(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """Among them those that every_third_unscored leaves out."""
    return [2 * reward([ids])[0] if sum(ids) % 3 == 1 else None for ids in completion_ids]


def in_order(completion_ids: list[list[int]], known: dict = {}, **_: Any) -> list[float]:  # noqa: B006
    """0, 1, 1, 2 for the responses to a prompt, of which two get their mean."""
    return [known.setdefault(tuple(ids), [0.0, 1.0, 1.0, 2.0][row % 4]) for row, ids in enumerate(completion_ids)]


class Watched:
    """A trainer that keeps every batch that reaches the loss, and the policy that each generation batch came from."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.at_loss: list[dict[str, Any]] = []
        self.policies: list[dict[str, torch.Tensor]] = []

    def _generate_and_score_completions(self, inputs):
        if self.model.training:
            self.policies.append(copy.deepcopy(self.model.state_dict()))
        return super()._generate_and_score_completions(inputs)

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if self.model.training:
            kept = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
            self.at_loss.append({"batch": len(self.policies) - 1, "loss": loss.item(), **kept})
        return loss


class WatchedCW(Watched, CWGRPOTrainer):
    pass


class WithTools(WatchedCW):
    """Every third token of a response is a tool's."""

    def _generate(self, prompts):
        result = list(super()._generate(prompts))
        result[2] = [[int(at % 3 != 1) for at in range(len(ids))] for ids in result[1]]
        return tuple(result)


class BackwardsCW(WatchedCW):
    """The responses to a prompt come in the reverse order."""

    def _generate(self, prompts):
        result, size = super()._generate(prompts), self.num_generations
        return tuple(
            [of[row - row % size + size - 1 - row % size] for row in range(len(of))] if isinstance(of, list) else of
            for of in result
        )


# Two groups of four in a batch, short responses, every step logged.
BASE = {"max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 16}
BASE |= {"learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no", "report_to": "none"}
BASE |= {"use_cpu": True, "bf16": False, "disable_tqdm": True}


def train(out: Path, trainer: type = WatchedCW, given: dict[str, Any] | None = None, **options: Any) -> Any:
    """The trainer after its training. ``given`` are its arguments, with the checkpoint to ``resume``; ``options`` those
    of its configuration."""
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    given = {"model": model, "reward_funcs": reward, "train_dataset": prompts(), **(given or {})}
    resume = given.pop("resume", None)
    given.setdefault("args", CWGRPOConfig(**BASE | {"output_dir": str(out)} | options))
    run = trainer(**given)
    run.train(resume_from_checkpoint=resume)
    return run


def kept(run: Any) -> dict[str, Any]:
    return {"at_loss": run.at_loss, "policies": run.policies}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    for name, options in json.loads(sys.argv[2]).items():
        scored = {"reward_funcs": [globals()[function] for function in options.pop("reward", ["reward"])]}
        run = train(out / name, given=scored, **options)
        torch.save(kept(run), out / f"{name}-{run.accelerator.process_index}.pt")
    os._exit(0)  # gloo's threads abort the process now and then, if it ends while they finish
