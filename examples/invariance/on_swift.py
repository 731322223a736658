"""ms-swift: its GRPOTrainer as ``swift rlhf`` starts it, one update; its losses, estimators, and our weightings."""

import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from batches import GROUPS, PROMPT, RESPONSES, SMALL, WIDTH, Case, NotOfferedError, drifted, share
from engines import make_model
from swift.pipelines import rlhf_main
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
FOLDER = Path(tempfile.mkdtemp())
(FOLDER / "rows.jsonl").write_text("\n".join([json.dumps({"messages": [{"role": "user", "content": "?"}]})] * GROUPS))
SETTINGS = {
    "rlhf_type": "grpo", "dataset": FOLDER / "rows.jsonl", "model": make_model(FOLDER / "model", **SMALL),
    "output_dir": FOLDER / "run", "model_type": "qwen2", "template": "qwen2_5", "system": "", "check_model": "false",
    "tuner_type": "full", "torch_dtype": "float32", "use_cpu": "true", "gradient_checkpointing": "false",
    "dataloader_num_workers": 0, "max_steps": 1, "save_strategy": "no", "report_to": "none", "max_grad_norm": 0,
    "num_generations": RESPONSES, "max_completion_length": WIDTH, "reward_funcs": "length", "loss_type": "grpo",
    "beta": 0.0,
}  # fmt: skip


def update(case: Case, seed: int, trainer: type = GRPOTrainer, weights: str = "none", **options: Any) -> None:
    if case.left or case.right or case.dynamic:
        raise NotOfferedError  # ms-swift has no such option
    batch = share(case, seed, whole_groups=True)
    rewards = [lambda _, **__: batch.rewards.tolist(), lambda _, **__: (batch.lengths / WIDTH).tolist()]

    class Drifted(trainer):
        def __init__(self, model: torch.nn.Module, *args: Any, **given: Any) -> None:
            super().__init__(model.double(), *args, **given | {"reward_funcs": rewards})

        def _infer_single_or_multi_turn(self, samples: list[Any], *_: Any, **__: Any) -> list[Any]:
            for sample, ids, length in zip(samples, batch.ids[:, PROMPT:], batch.lengths, strict=True):
                sample.messages = [*sample.messages, {"role": "assistant", "content": "?"}]
                sample.response_token_ids, sample.finish_reason = [ids[:length].tolist()], "stop"
            return samples

        def _postprocess_batch(self, samples: list[Any], encoded: list[dict[str, Any]]) -> None:
            super()._postprocess_batch(samples, encoded)
            for part, drift in zip(encoded, batch.drift.chunk(len(encoded)), strict=True):
                of = part["grpo_batch"]
                of.old_per_token_logps = drifted(of.old_per_token_logps, drift, of.completion_mask)

    size = {"per_device_train_batch_size": len(batch.row) // case.micro, "gradient_accumulation_steps": case.micro}
    given = {**SETTINGS, **size, "seed": seed + 1000 * case.draw, **options}
    os.environ["CW_GRPO_WEIGHTS"] = weights
    with patch.object(TrainerFactory, "get_trainer_cls", lambda _: Drifted):
        rlhf_main([str(part) for name, value in given.items() for part in (f"--{name}", value)])


def rows(own: Any) -> dict[str, Any]:
    """``own``: a trainer derived from ms-swift's."""
    found = {"loss: own": partial(update, trainer=own)} if own else {}
    found |= {row: partial(update, **options) for row, options in OPTIONS.items()}
    weighted = partial(update, trainer=CWGRPOTrainer)
    return found | {f"weights: {name}": partial(weighted, weights=name) for name in BUILT_IN}
