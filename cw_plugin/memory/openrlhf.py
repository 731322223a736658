"""What the recipe of examples/openrlhf needs: OpenRLHF 0.11.2, DeepSpeed, and vLLM on the same GPUs."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from cw_plugin.errors import OptionsError
from cw_plugin.memory import deepspeed
from cw_plugin.memory.models import parameter_count, read_shape
from cw_plugin.memory.stages import ASLEEP, GIB, TRAINER, Estimate, Stage, vllm_memory
from cw_plugin.memory.tracked import Forward, packed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULTS = {
    "--actor.num_nodes": "1",
    "--actor.num_gpus_per_node": "8",
    "--algo.kl.init_coef": "0.01",
    "--ckpt.max_num": "3",
    "--ckpt.save_steps": "-1",
    "--data.max_len": "2048",
    "--ds.zero_stage": "2",
    "--ds.param_dtype": "bf16",
    "--ds.lora.rank": "0",
    "--ds.ring_attn_size": "1",
    "--ds.tensor_parallel_size": "1",
    "--rollout.batch_size": "1024",
    "--rollout.micro_batch_size": "1",
    "--rollout.n_samples_per_prompt": "1",
    "--rollout.temperature": "1.0",
    "--train.batch_size": "128",
    "--train.micro_batch_size": "1",
    "--train.num_episodes": "1",
    "--vllm.gpu_memory_utilization": "0.95",
    "--vllm.tensor_parallel_size": "1",
}
"""OpenRLHF's own, of the arguments that are read here (openrlhf/cli/train_ppo_ray.py)."""
CALCULATED = {
    "--ds.param_dtype": "bf16",
    "--ds.lora.rank": "0",
    "--ds.ring_attn_size": "1",
    "--ds.tensor_parallel_size": "1",
}
"""Arguments of which only this value is calculated."""
NOT_CALCULATED = (
    "--critic.model_name_or_path",
    "--ds.adam_offload",
    "--ds.deepcompile",
    "--ds.grad_accum_dtype",
    "--ds.load_in_4bit",
    "--ds.overlap_comm",
    "--ds.use_liger_kernel",
    "--ref.offload",
    "--train.async_enable",
    "--train.dynamic_batch_enable",
    "--train.enable_ema",
)
NEEDED = ("--ds.packing_samples", "--train.colocate_all", "--vllm.enable_sleep")
"""Flags without which nothing is calculated."""
FIXES = {
    "vLLM awake": "a smaller --vllm.gpu_memory_utilization",
    "log-probs": "a smaller --rollout.micro_batch_size",
    "training": "a smaller --train.micro_batch_size",
}
"""What to change, by the stage that does not fit."""


class _CrossEntropy(torch.autograd.Function):
    """The memory of flash-attn 2.8.3's cross entropy, as OpenRLHF calls it: the gradient is a tensor of its own."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits)
        return logits.new_empty(logits.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        return torch.zeros_like(logits)


def _forward(tokens: int, temperature: float) -> Forward:
    """As Actor.forward (openrlhf/models/actor.py): logits in float32, which training_step holds until its end."""

    def forward(model: "PreTrainedModel") -> tuple[torch.Tensor, Any]:
        output = model(**packed(tokens))
        output["logits"] = output["logits"].to(torch.float32)
        if temperature != 1.0:
            output["logits"].div_(temperature)
        return _CrossEntropy.apply(output["logits"]), output  # type: ignore[no-untyped-call]

    return forward


def is_of(printed: str) -> bool:
    """Whether a script has printed what examples/openrlhf/paper.sh prints with DRY_RUN=1."""
    return printed.startswith("--actor.")


def estimate(printed: str, gpu: float) -> Estimate:
    """What a run needs on GPUs of ``gpu`` GiB, from what the recipe prints: OpenRLHF's arguments, one per line."""
    arguments = _arguments(printed)
    _check(arguments)
    shape = read_shape(arguments["--actor.model_name_or_path"])
    parameters = parameter_count(shape)

    def number(name: str) -> int:
        return int(arguments[name])

    ranks = number("--actor.num_nodes") * number("--actor.num_gpus_per_node")
    longest, temperature = number("--data.max_len"), float(arguments["--rollout.temperature"])
    run = deepspeed.Run(
        shape=shape,
        zero=deepspeed.Zero(number("--ds.zero_stage"), ranks, parameters),
        forward=_forward(number("--train.micro_batch_size") * longest, temperature),
        forward_only=_forward(number("--rollout.micro_batch_size") * longest, temperature),
        recompute="--actor.gradient_checkpointing_enable" in arguments,
        micro_batches=number("--train.batch_size") // (number("--train.micro_batch_size") * ranks),
        has_reference=float(arguments["--algo.kl.init_coef"]) > 0,
    )
    sleeps = "--ds.enable_sleep" in arguments  # the optimizer is in the node's memory, except in training
    optimizer = 0.0 if sleeps else run.zero.optimizer
    resident = {"weights": run.zero.weights, "optimizer": optimizer, "reference": run.reference}
    trainers = 2 * TRAINER if run.has_reference else TRAINER  # processes on a GPU
    share = float(arguments["--vllm.gpu_memory_utilization"]) * gpu * GIB
    tp = number("--vllm.tensor_parallel_size")
    responses = number("--rollout.batch_size") * number("--rollout.n_samples_per_prompt") * tp / ranks
    return Estimate(
        path=arguments["--actor.model_name_or_path"],
        model=parameters,
        engine=f"DeepSpeed ZeRO-{run.zero.stage}",
        gpus=ranks,
        stages=(
            Stage("vLLM awake", {**resident, "vLLM": share, "processes": trainers}),
            deepspeed.log_probs(run, resident, trainers + ASLEEP),
            deepspeed.training(run, trainers + ASLEEP),
        ),
        vllm=vllm_memory(shape, parameters, responses * longest, tp),
        host=run.zero.optimizer * number("--actor.num_gpus_per_node") if sleeps else 0.0,
        checkpoint=float(deepspeed.CHECKPOINT * parameters),
        checkpoints=_checkpoints(arguments),
        folder=arguments["--ckpt.output_dir"],
    )


def _arguments(printed: str) -> dict[str, str]:
    """The arguments with their values; of one that is there twice, the last."""
    arguments = dict(DEFAULTS)
    for line in printed.splitlines():
        if line.startswith("--"):
            name, _, value = line.partition("=")
            arguments[name] = value
        else:
            arguments[name] = line
    return arguments


def _check(arguments: Mapping[str, str]) -> None:
    """Raise OptionsError for what is not calculated."""
    for name, value in CALCULATED.items():
        if arguments[name] != value:
            raise OptionsError(f"the memory of {name} {arguments[name]} is not calculated", fix=f"use {value}")
    for name in NOT_CALCULATED:
        if name in arguments:
            raise OptionsError(f"the memory of {name} is not calculated", fix="leave it out")
    for name in NEEDED:
        if name not in arguments:
            raise OptionsError(f"the memory without {name} is not calculated", fix="add it")


def _checkpoints(arguments: Mapping[str, str]) -> int:
    """How many checkpoints there are at once, at most: the oldest is deleted before the new one is written."""
    every = int(arguments["--ckpt.save_steps"])
    if every <= 0 or "--data.max_samples" not in arguments:
        return 0
    rows = int(arguments["--data.max_samples"]) * int(arguments["--train.num_episodes"])
    steps = rows // int(arguments["--rollout.batch_size"])
    return min(math.ceil(steps / every), int(arguments["--ckpt.max_num"]))
