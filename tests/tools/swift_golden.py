"""Prints the advantages that ms-swift trains on when its responses are the golden vectors, for every weighting."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import golden
import torch
from interpreter import ROOT
from swift.pipelines import rlhf_main
from swift.rewards import ORM, orms
from swift.rlhf_trainers import GRPOTrainer
from swift.trainers import TrainerFactory

from cw_plugin.hosts.swift import CWGRPOTrainer


class Reached(Exception):
    """Ends a run with its advantages, (rows, time)."""


class Golden(GRPOTrainer):
    """Responses, rewards, log-probs and entropies are the golden ones."""

    def _infer_single_or_multi_turn(self, samples: list[Any], *_: Any, **__: Any) -> list[Any]:
        for sample, (_, log_probs, advantage) in zip(samples, golden.rows(), strict=True):
            sample.messages = [*sample.messages, {"role": "assistant", "content": "?"}]
            sample.response_token_ids, sample.finish_reason = [[1] * len(log_probs)], "stop"
            sample.extra["score"] = advantage
        return samples

    def _get_per_token_logps_and_entropies(self, model: Any, inputs: Any, batch: Any, **_: Any) -> tuple[Any, ...]:
        assert batch.completion_mask.bool().equal(golden.of_tokens("response_mask").bool())
        return golden.of_tokens("log_probs").float(), golden.of_tokens("entropies").float()


class Trainer(CWGRPOTrainer, Golden):
    """Ends where the advantages are made."""

    def _postprocess_batch(self, samples: list[Any], encoded: list[dict[str, Any]]) -> None:
        super()._postprocess_batch(samples, encoded)
        raise Reached(encoded[0]["grpo_batch"].advantages.tolist())


class Score(ORM):
    def __call__(self, completions: list[str], score: list[float], **_: Any) -> list[float]:
        return score


def advantages(out: Path, weights: str) -> list[list[float]]:
    os.environ["CW_GRPO_WEIGHTS"] = weights
    settings = {
        "rlhf_type": "grpo", "dataset": out / "problems.jsonl", "output_dir": out / "run", "reward_funcs": "score",
        "model": ROOT / "examples" / "cpu" / "model", "model_type": "qwen2", "template": "qwen2_5",
        "torch_dtype": "float32", "check_model": "false", "tuner_type": "full", "use_cpu": "true", "max_steps": 1,
        "num_generations": 4, "per_device_train_batch_size": len(golden.UIDS), "report_to": "none",
    }  # fmt: skip
    try:
        rlhf_main([str(part) for name, value in settings.items() for part in (f"--{name}", value)])
    except Reached as reached:
        return reached.args[0]
    raise AssertionError("it trained without advantages")


out = Path(sys.argv[1])
problem = {"messages": [{"role": "user", "content": "?"}]}
(out / "problems.jsonl").write_text("\n".join([json.dumps(problem)] * 2))
orms["score"] = Score
TrainerFactory.TRAINER_MAPPING["grpo"] = "__main__.Trainer"
torch.save({name: torch.tensor(advantages(out, name)) for name in golden.GOLDEN["weightings"]}, out / "found.pt")
