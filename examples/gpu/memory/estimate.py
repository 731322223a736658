"""What a training step of verl needs on a GPU: its stages, and what they have whichever engine trains.

Stages take turns on the same GPUs. What processes need besides, TRAINER and ASLEEP, is an allowance.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from omegaconf import DictConfig
from transformers import PretrainedConfig

GIB = 2**30
# Of a GPU's memory that may be planned with: the rest is for fragments of PyTorch's allocator, and for errors here.
ROOM = 0.9
TRAINER = 1.5 * GIB  # CUDA's context, cuBLAS's workspace and NCCL's buffers of the training process
ASLEEP = 2.0 * GIB  # the same of vLLM's process while it sleeps, and its CUDA graphs, which sleep mode does not free
VLLM_WORK = 3.0 * GIB  # activations and CUDA graphs of vLLM, inside its share
# GiB that a GPU has, by the GB that it is sold as: what torch.cuda reports of the smallest such card.
SOLD_AS = {24: 23.5, 40: 39.4, 48: 44.4, 80: 79.1, 96: 94.5, 141: 139.8}


class NotCalculatedError(Exception):
    """Settings whose memory is not calculated here. A run may well have them."""


@dataclass(frozen=True)
class Stage:
    """Bytes on one GPU while a stage runs, by what they are for."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Estimate:
    """What one run needs."""

    engine: str  # what trains, in words: "FSDP2" or "Megatron"
    parameters: int  # of the model
    stages: tuple[Stage, ...]  # of a step, in their order
    host: float  # bytes of a node's memory that offloading takes
    checkpoint: float  # bytes of one checkpoint

    @property
    def largest(self) -> Stage:
        return max(self.stages, key=lambda stage: stage.total)


def estimate(config: DictConfig, gpu: float) -> Estimate:
    """What a run with verl's composed configuration needs on a GPU of ``gpu`` GiB."""
    if config.actor_rollout_ref.model.get("lora_rank"):
        raise NotCalculatedError("the memory of LoRA is not calculated")
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy == "megatron":
        import megatron_engine

        return megatron_engine.needs(config, gpu)
    if strategy == "fsdp2":
        import fsdp2_engine

        return fsdp2_engine.needs(config, gpu)
    raise NotCalculatedError(f"the memory of actor.strategy={strategy} is not calculated; use fsdp2 or megatron")


def vllm_needs(config: DictConfig, shape: PretrainedConfig, parameters: int) -> float:
    """Bytes that vLLM needs on a GPU to answer all prompts of a step at once.

    They are its weights in bfloat16, keys and values of every response that a GPU (or its tensor-parallel group)
    writes, and its own work.
    """
    rollout, data = config.actor_rollout_ref.rollout, config.data
    tp = rollout.tensor_model_parallel_size
    responses = min(data.train_batch_size * rollout.n * tp / gpus(config), rollout.max_num_seqs)
    tokens = responses * (data.max_prompt_length + data.max_response_length)
    head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    bytes_per_token = 2 * 2 * shape.num_hidden_layers * shape.num_key_value_heads * head
    return float((2.0 * parameters + tokens * bytes_per_token) / tp + VLLM_WORK)


def stages_of(
    config: DictConfig,
    gpu: float,
    held: Mapping[str, float],
    resident: Mapping[str, float],
    log_prob_work: float,
    training_work: float,
) -> tuple[Stage, ...]:
    """The stages of a step.

    Args:
        held: what training has between two passes: weights, gradients and optimizer.
        resident: what of it, and of the reference policy, is on the GPU at all times.
        log_prob_work, training_work: activations.
    """
    # vLLM takes its share of the whole GPU, whatever others hold there (vllm/v1/worker/utils.py, request_memory).
    share = config.actor_rollout_ref.rollout.gpu_memory_utilization * gpu * GIB
    processes = TRAINER + ASLEEP
    while_log_probs = {**resident, "weights": held["weights"], "activations": log_prob_work, "processes": processes}
    return (
        Stage("vLLM awake", {**resident, "vLLM": share, "processes": TRAINER}),
        Stage("log-probs", while_log_probs),
        Stage("training", {**resident, **held, "activations": training_work, "processes": processes}),
    )


def checkpoints(config: DictConfig) -> int:
    """How many checkpoints a run keeps, if its number of steps is set."""
    every, steps = config.trainer.save_freq, config.trainer.total_training_steps
    if every <= 0 or not steps:
        return 0
    written = math.ceil(steps / every)
    return min(written, config.trainer.max_actor_ckpt_to_keep or written)


def gpus(config: DictConfig) -> int:
    return int(config.trainer.nnodes * config.trainer.n_gpus_per_node)


def has_reference(config: DictConfig) -> bool:
    """Whether the run has a reference policy, as verl's need_reference_policy says."""
    return bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)


def training_tokens(config: DictConfig) -> int:
    """The tokens of the largest micro-batch in training."""
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        return int(actor.ppo_max_token_len_per_gpu)
    return _tokens_of(config, "ppo_micro_batch_size_per_gpu", actor.ppo_micro_batch_size_per_gpu)


def log_prob_tokens(config: DictConfig) -> int:
    """The tokens of the largest micro-batch in which old log-probs are computed."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.log_prob_use_dynamic_bsz:
        return int(rollout.log_prob_max_token_len_per_gpu)
    return _tokens_of(config, "log_prob_micro_batch_size_per_gpu", rollout.log_prob_micro_batch_size_per_gpu)


def _tokens_of(config: DictConfig, setting: str, responses: int | None) -> int:
    if responses is None:
        raise NotCalculatedError(f"{setting} is not set, and memory depends on it; set it")
    return int(responses * (config.data.max_prompt_length + config.data.max_response_length))
