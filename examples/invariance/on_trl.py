"""TRL: GRPOTrainer.train(), one update, with its losses, its ways to scale rewards, and our weightings."""

import functools
import tempfile
from functools import partial
from typing import Any

import torch
from batches import PROMPT, RESPONSES, ROWS, SMALL, WIDTH, Case, KeepsGradient, make_batch, rows_of
from datasets import Dataset
from interpreter import ROOT
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.registry import BUILT_IN

from trl import GRPOTrainer  # isort: skip

MODEL = ROOT / "examples" / "cpu" / "model"
OPTIONS: dict[str, dict[str, Any]] = {
    **{f"loss: {name}": {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")},
    "loss: grpo, sequence level": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "loss: luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "loss: dapo, KL penalty": {"beta": 0.1},
    "loss: dapo, entropy bonus": {"entropy_coef": 0.1},
    "loss: dapo, top_entropy_quantile": {"top_entropy_quantile": 0.2},
    **{f"estimator: scale_rewards={kind}": {"scale_rewards": kind} for kind in ("batch", "none")},
    "estimator: normalize_then_sum": {"multi_objective_aggregation": "normalize_then_sum"},
}


class Measured(KeepsGradient):
    """A trainer that is given this process's rows, and whose policy has drifted."""

    def __init__(self, rows: torch.Tensor, seed: int, **given: Any) -> None:
        self.batch = make_batch(seed, rows)
        rewards = [self.score, self.score_length]
        super().__init__(rollout_func=self.roll_out, reward_funcs=rewards, **given)

    def roll_out(self, *_: Any) -> dict[str, list[Any]]:
        prompts, responses = self.batch.ids.split((PROMPT, WIDTH), 1)
        completions = [ids[:length].tolist() for ids, length in zip(responses, self.batch.lengths, strict=True)]
        return {"prompt_ids": prompts.tolist(), "completion_ids": completions, "logprobs": None}

    def score(self, **_: Any) -> list[float]:
        return self.batch.rewards.tolist()

    def score_length(self, **_: Any) -> list[float]:
        return (self.batch.lengths / WIDTH).tolist()

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        ids = torch.cat([out["prompt_ids"], out["completion_ids"]], 1)
        attended = torch.cat([out["prompt_mask"], out["completion_mask"]], 1)
        with torch.no_grad():
            width = out["completion_ids"].shape[1]
            log_probs = self._get_per_token_logps_and_entropies(self.model, ids, attended, width)[0]
        return out | {"old_per_token_logps": self.batch.drifted(log_probs, out["completion_mask"])}


@functools.cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


def gradient(kind: type, options: dict[str, Any], case: Case, seed: int) -> torch.Tensor | None:
    if case.left or case.dynamic:
        return None  # TRL has one option for the padding on both sides, and no dynamic batch sizes
    rows = rows_of(case, seed, whole_groups=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = CWGRPOConfig(
            output_dir=folder, max_steps=1, per_device_train_batch_size=len(rows) // case.micro, max_grad_norm=0.0,
            gradient_accumulation_steps=case.micro, num_generations=RESPONSES, max_completion_length=WIDTH,
            shuffle_dataset=False, save_strategy="no", report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
            pad_to_multiple_of=7 if case.right else None, seed=seed + 1000 * case.draw, cw_record_every=0,
            gradient_checkpointing=False, **options,
        )  # fmt: skip
        prompts = Dataset.from_list([{"prompt": str(row)} for row in range(ROWS // RESPONSES)])
        torch.manual_seed(3)
        model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(MODEL, initializer_range=0.3, **SMALL)).double()
        model.config._name_or_path = str(MODEL)
        given = {"model": model, "args": arguments, "train_dataset": prompts, "processing_class": tokenizer()}
        trainer = type("Trainer", (Measured, kind), {})(rows, seed, **given)
        trainer.train()
    return trainer.gradient


def rows(own: Any) -> dict[str, Any]:
    """``own``: a trainer derived from TRL's."""
    found = {"loss: own": partial(gradient, own, {})} if own else {}
    found |= {name: partial(gradient, GRPOTrainer, options) for name, options in OPTIONS.items()}
    return found | {f"weights: {name}": partial(gradient, CWGRPOTrainer, {"cw_weights": name}) for name in BUILT_IN}
