"""ms-swift: its GRPOTrainer as ``swift rlhf`` starts it, one update; its losses, estimators, and our weightings."""

import functools
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from batches import PROMPT, RESPONSES, ROWS, SMALL, WIDTH, Batch, Case, KeepsGradient, make_batch, rows_of
from engines import make_model
from swift.pipelines import rlhf_main
from swift.rewards import ORM, orms
from swift.rlhf_trainers import GRPOTrainer
from swift.trainers import TrainerFactory

from cw_plugin.hosts.swift import CWGRPOTrainer
from cw_plugin.registry import BUILT_IN

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "fipo", "real")
OPTIONS: dict[str, dict[str, Any]] = {
    **{f"loss: {loss}": {"loss_type": loss} for loss in LOSSES},
    **{f"loss: grpo, {level}": {"importance_sampling_level": level} for level in ("sequence", "sequence_token")},
    "loss: grpo, KL penalty": {"beta": 0.1},
    **{f"estimator: {name}": {"advantage_estimator": name} for name in ("rloo", "reinforce_plus_plus")},
    **{f"estimator: scale_rewards={kind}": {"scale_rewards": kind} for kind in ("batch", "none", "gdpo")},
}
NOW: dict[str, Any] = {}  # the rows of the trainer that ms-swift constructs, and that trainer


class Measured(KeepsGradient):
    """A trainer that is given this process's rows, and whose policy has drifted."""

    def __init__(self, model: torch.nn.Module, *args: Any, **given: Any) -> None:
        super().__init__(model.double(), *args, **given)
        NOW["trainer"] = self

    def _infer_single_or_multi_turn(self, samples: list[Any], *_: Any, **__: Any) -> list[Any]:
        batch = NOW["batch"]
        for at, sample in enumerate(samples):
            sample.messages = [*sample.messages, {"role": "assistant", "content": str(at)}]
            sample.response_token_ids = [batch.ids[at, PROMPT : PROMPT + int(batch.lengths[at])].tolist()]
            sample.finish_reason = "stop"
            scores = {"score": float(batch.rewards[at]), "score_length": int(batch.lengths[at]) / WIDTH}
            sample.extra |= {"at": at, **scores}
        return samples

    def _postprocess_batch(self, samples: list[Any], encoded: list[dict[str, Any]]) -> None:
        super()._postprocess_batch(samples, encoded)
        for chunk, part in zip(self.split_by_mini_batches(samples), encoded, strict=True):
            rows, batch = torch.tensor([sample.extra["at"] for sample in chunk]), part["grpo_batch"]
            of_chunk = Batch(*(values[rows] for values in NOW["batch"]))
            batch.old_per_token_logps = of_chunk.drifted(batch.old_per_token_logps, batch.completion_mask)


class Score(ORM):
    def __call__(self, completions: list[str], score: list[float], **_: Any) -> list[float]:
        return score


class ScoreLength(ORM):
    def __call__(self, completions: list[str], score_length: list[float], **_: Any) -> list[float]:
        return score_length


orms.update(score=Score, score_length=ScoreLength)
plain, weighted = (type("Trainer", (Measured, kind), {}) for kind in (GRPOTrainer, CWGRPOTrainer))


@functools.cache
def files() -> Path:
    folder = Path(tempfile.mkdtemp())
    make_model(folder / "model", **SMALL)
    rows = [json.dumps({"messages": [{"role": "user", "content": "?"}]})] * (ROWS // RESPONSES)
    (folder / "rows.jsonl").write_text("\n".join(rows))
    return folder


def gradient(trainer: str, options: dict[str, Any], weights: str, case: Case, seed: int) -> torch.Tensor | None:
    if case.left or case.right or case.dynamic:
        return None  # ms-swift has no such option
    rows = rows_of(case, seed, whole_groups=True)
    NOW["batch"] = make_batch(seed, rows)
    given = {
        "rlhf_type": "grpo", "dataset": files() / "rows.jsonl", "output_dir": files() / "run",
        "model": files() / "model",
        "model_type": "qwen2", "template": "qwen2_5", "system": "", "torch_dtype": "float32", "check_model": "false",
        "tuner_type": "full", "max_completion_length": WIDTH, "learning_rate": 1e-9, "max_steps": 1, "use_cpu": "true",
        "save_strategy": "no", "report_to": "none", "num_generations": RESPONSES, "gradient_checkpointing": "false",
        "per_device_train_batch_size": len(rows) // case.micro, "gradient_accumulation_steps": case.micro,
        "train_dataloader_shuffle": "false", "dataset_shuffle": "false", "loss_type": "grpo", "max_grad_norm": 0,
        "seed": seed + 1000 * case.draw, "advantage_estimator": "grpo", "beta": 0.0, "dataloader_num_workers": 0,
        **options,
    }  # fmt: skip
    arguments = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
    TrainerFactory.TRAINER_MAPPING["grpo"] = f"on_swift.{trainer}"
    with patch.dict(os.environ, CW_GRPO_WEIGHTS=weights, CW_GRPO_RECORD_EVERY="0"):
        rlhf_main([*arguments, "--reward_funcs", "score", "score_length"])
    return NOW["trainer"].gradient


def rows(own: Any) -> dict[str, Any]:
    """``own``: a trainer derived from ms-swift's."""
    globals()["own"] = type("Trainer", (Measured, own), {}) if own else None
    found = {"loss: own": partial(gradient, "own", {}, "none")} if own else {}
    found |= {name: partial(gradient, "plain", options, "none") for name, options in OPTIONS.items()}
    return found | {f"weights: {name}": partial(gradient, "weighted", {}, name) for name in BUILT_IN}
