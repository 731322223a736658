"""TRL: GRPOTrainer.train(), one update, with its losses, its ways to scale rewards, and our weightings."""

import tempfile
from functools import partial
from typing import Any

import torch
from batches import GROUPS, PROMPT, RESPONSES, SMALL, WIDTH, Case, NotOfferedError, drifted, share
from datasets import Dataset
from interpreter import ROOT
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOTrainer

from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from cw_plugin.registry import BUILT_IN

MODEL = ROOT / "examples" / "cpu" / "model"
TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo")
OPTIONS: dict[str, dict[str, Any]] = {
    **{f"loss: {name}": {"loss_type": name} for name in LOSSES},
    "loss: grpo, sequence level": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "loss: luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "loss: dapo, KL penalty": {"beta": 0.1},
    "loss: dapo, entropy bonus": {"entropy_coef": 0.1},
    "loss: dapo, top_entropy_quantile": {"top_entropy_quantile": 0.2},
    **{f"estimator: scale_rewards={kind}": {"scale_rewards": kind} for kind in ("batch", "none")},
    "estimator: normalize_then_sum": {"multi_objective_aggregation": "normalize_then_sum"},
}


def update(case: Case, seed: int, trainer: type = GRPOTrainer, **options: Any) -> None:
    if case.left or case.dynamic:
        raise NotOfferedError  # TRL has one option for the padding on both sides, and no dynamic batch sizes
    batch = share(case, seed, whole_groups=True)
    prompts, responses = batch.ids.split((PROMPT, WIDTH), 1)
    completions = [ids[:length].tolist() for ids, length in zip(responses, batch.lengths, strict=True)]
    rollout = {"prompt_ids": prompts.tolist(), "completion_ids": completions, "logprobs": None}

    class Drifted(trainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            old = drifted(out["old_per_token_logps"], batch.drift, out["completion_mask"])
            return out | {"old_per_token_logps": old}

    torch.manual_seed(3)
    model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(MODEL, initializer_range=0.3, **SMALL)).double()
    model.config._name_or_path = str(MODEL)
    with tempfile.TemporaryDirectory() as folder:
        arguments = CWGRPOConfig(
            output_dir=folder, max_steps=1, per_device_train_batch_size=len(batch.row) // case.micro, use_cpu=True,
            gradient_accumulation_steps=case.micro, num_generations=RESPONSES, max_completion_length=WIDTH, bf16=False,
            max_grad_norm=0.0, save_strategy="no", report_to="none", disable_tqdm=True, gradient_checkpointing=False,
            pad_to_multiple_of=7 if case.right else None, seed=seed + 1000 * case.draw, cw_record_every=0,
            num_iterations=2, **options,  # with which TRL computes old log-probs
        )  # fmt: skip
        Drifted(
            model, args=arguments, train_dataset=Dataset.from_dict({"prompt": ["?"] * GROUPS}),
            processing_class=TOKENIZER, rollout_func=lambda *_: rollout,
            reward_funcs=[lambda **_: batch.rewards.tolist(), lambda **_: (batch.lengths / WIDTH).tolist()],
        ).train()  # fmt: skip


def rows(own: Any) -> dict[str, Any]:
    """``own``: a trainer derived from TRL's."""
    found = {"loss: own": partial(update, trainer=own)} if own else {}
    found |= {row: partial(update, **options) for row, options in OPTIONS.items()}
    weighted = partial(update, trainer=CWGRPOTrainer)
    return found | {f"weights: {name}": partial(weighted, cw_weights=name) for name in BUILT_IN}
