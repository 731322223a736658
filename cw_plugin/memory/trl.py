"""What the recipe of examples/trl needs: TRL 1.16, DeepSpeed by accelerate, and vLLM on a GPU of its own."""

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from cw_plugin.errors import OptionsError
from cw_plugin.memory import deepspeed
from cw_plugin.memory.models import parameter_count, read_shape
from cw_plugin.memory.stages import TRAINER, Estimate, vllm_memory
from cw_plugin.memory.tracked import Forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# trl/kernels/chunked_logprob.py and trl/trainer/utils.py: logits of so many tokens and entries are there at once.
TILE = (4096, 32768)
_SMALLER = "a smaller --per_device_train_batch_size, and as many times more --gradient_accumulation_steps"
FIXES = {"log-probs": _SMALLER, "training": _SMALLER}
"""What to change, by the stage that does not fit."""


class _ChunkedLogProbs(torch.autograd.Function):
    """The memory of TRL's ChunkedLogProbFunction with Triton: tiles of logits, and both gradients in float32."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        _tile = hidden.new_empty(TILE)
        ctx.save_for_backward(hidden, weight)
        return hidden.new_empty(len(hidden), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, weight = ctx.saved_tensors
        of_hidden, of_weight = (
            torch.zeros_like(hidden, dtype=torch.float32),
            torch.zeros_like(weight, dtype=torch.float32),
        )
        _tile = hidden.new_empty(TILE)
        return of_hidden.to(hidden.dtype), of_weight.to(weight.dtype)


def _forward(rows: int, prompt: int, response: int) -> Forward:
    """As _get_per_token_logps_and_entropies: padded rows with a mask; only tokens of responses get log-probs."""

    def forward(model: "PreTrainedModel") -> tuple[torch.Tensor, None]:
        ids = torch.ones(rows, prompt + response, dtype=torch.long)
        hidden = model.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).last_hidden_state
        answered = hidden[:, prompt - 1 : -1].reshape(rows * response, -1)
        return _ChunkedLogProbs.apply(answered, model.lm_head.weight), None  # type: ignore[no-untyped-call]

    return forward


def is_of(printed: str) -> bool:
    """Whether a script has printed what examples/trl/paper.sh prints with DRY_RUN=1."""
    return printed.startswith("accelerate launch") and "{" in printed


def estimate(printed: str, _gpu: float) -> Estimate:
    """What a run needs, from what the recipe prints: how it is launched, and TRL's settings as JSON."""
    launch, _, settings = printed.partition("{")
    words = shlex.split(launch.splitlines()[0])
    machine = yaml.safe_load(Path(words[words.index("--config_file") + 1]).read_text(encoding="utf-8"))
    return _estimate(json.loads("{" + settings), machine)


def _estimate(settings: Mapping[str, Any], machine: Mapping[str, Any]) -> Estimate:
    _check(settings, machine)
    shape, ranks = read_shape(settings["model"]), machine["num_processes"]
    parameters = parameter_count(shape)
    rows, prompt = settings["per_device_train_batch_size"], settings["max_prompt_length"]
    forward = _forward(rows, prompt, settings["max_completion_length"])
    run = deepspeed.Run(
        shape=shape,
        zero=deepspeed.Zero(machine["deepspeed_config"]["zero_stage"], ranks, parameters),
        forward=forward,
        forward_only=forward,
        recompute=settings["gradient_checkpointing"],
        micro_batches=settings["gradient_accumulation_steps"],
        has_reference=settings["beta"] != 0,
    )
    resident = {"weights": run.zero.weights, "optimizer": run.zero.optimizer, "reference": run.reference}
    answered_at_once = rows * ranks * settings["steps_per_generation"]
    return Estimate(
        path=settings["model"],
        model=parameters,
        engine=f"DeepSpeed ZeRO-{run.zero.stage}",
        gpus=ranks,
        stages=(deepspeed.log_probs(run, resident, TRAINER), deepspeed.training(run, TRAINER)),
        vllm=vllm_memory(shape, parameters, answered_at_once * (prompt + settings["max_completion_length"])),
        host=0.0,
        checkpoint=float(deepspeed.CHECKPOINT * parameters),
        checkpoints=_checkpoints(settings),
        folder=settings["output_dir"],
    )


def _check(settings: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Raise OptionsError for what is not calculated."""
    zero = machine.get("deepspeed_config", {})
    dtype = (settings.get("model_init_kwargs") or {}).get("dtype")
    calculated = {
        "distributed_type": (machine.get("distributed_type"), "DEEPSPEED"),
        "offload_optimizer_device": (zero.get("offload_optimizer_device", "none"), "none"),
        "offload_param_device": (zero.get("offload_param_device", "none"), "none"),
        "vllm_mode": (settings["vllm_mode"], "server"),
        "dtype of model_init_kwargs": (dtype, "bfloat16"),
        "use_liger_kernel": (settings["use_liger_kernel"], False),
    }
    for name, (value, wanted) in calculated.items():
        if value != wanted:
            raise OptionsError(f"the memory of {name}={value} is not calculated", fix=f"use {wanted}")


def _checkpoints(settings: Mapping[str, Any]) -> int:
    """How many checkpoints there are at once, at most: the new one is written before the oldest is deleted."""
    if settings["save_strategy"] != "steps" or settings["max_steps"] <= 0:
        return 0
    saved: int = math.ceil(settings["max_steps"] / settings["save_steps"])
    limit: int = settings["save_total_limit"] or 0
    return min(saved, limit + 1) if limit > 0 else saved  # without a limit, or with 0, transformers deletes none
