"""The memory of each stage of a training step of verl, on the GPU that needs most.

verl's stages take turns on the same GPUs. Weights, gradients and optimizer are exact, and a test compares them with
what verl's engines hold. Activations of FSDP2 are counted by PyTorch's trackers; those of Megatron are an upper bound,
from the same model of transformers. What processes need besides, :data:`TRAINER` and :data:`ASLEEP`, is an allowance.
No figure has been compared with a GPU.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cw_plugin.errors import OptionsError
from cw_plugin.verl_integration.doctor.memory import megatron
from cw_plugin.verl_integration.doctor.memory.models import parameter_shapes, read_shape

GIB = 2**30
ROOM = 0.9
"""Of a GPU's memory that may be planned with: the rest is for fragments of PyTorch's allocator, and for errors here."""
TRAINER = 1.5 * GIB
"""CUDA's context, cuBLAS's workspace and NCCL's buffers of the training process."""
ASLEEP = 2.0 * GIB
"""The same of vLLM's process while it sleeps, and its CUDA graphs, which sleep mode does not free."""
VLLM_WORK = 3.0 * GIB
"""Activations and CUDA graphs of vLLM, inside its share."""
CHUNK = 2048  # tokens; verl's entropy_from_logits_chunk_size

SOLD_AS = {24: 23.5, 40: 39.4, 48: 44.4, 80: 79.1, 96: 94.5, 141: 139.8}
"""GiB that a GPU has, by the GB that it is sold as: what torch.cuda reports of the smallest such card."""


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
    """What one run needs.

    Attributes:
        model: parameters.
        stages: of a step, in their order.
        vllm: bytes that vLLM needs to answer all requests of one GPU at once: weights, keys and values, its own work.
        host: bytes of a node's memory that offloading takes.
        checkpoint: bytes of one checkpoint.
        checkpoints: how many of them a run keeps.
    """

    model: int
    engine: str
    gpus: int
    stages: tuple[Stage, ...]
    vllm: float
    host: float
    checkpoint: float
    checkpoints: int

    @property
    def largest(self) -> Stage:
        return max(self.stages, key=lambda stage: stage.total)


def estimate(config: Any, gpu: float) -> Estimate:
    """For verl's composed configuration, and a GPU of ``gpu`` GiB. OptionsError for an engine other than FSDP2 and
    Megatron, and for a model that transformers does not know."""
    model = config.actor_rollout_ref.model
    if model.get("lora_rank"):
        raise OptionsError("the memory of LoRA is not calculated; remove actor_rollout_ref.model.lora_rank")
    shape = read_shape(model.path, bool(model.get("trust_remote_code")))
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy == "megatron":
        return _of_megatron(config, shape, gpu)
    if strategy in ("fsdp", "fsdp2"):
        return _of_fsdp(config, shape, gpu)
    raise OptionsError(f"the memory of actor.strategy={strategy} is not calculated; use fsdp2 or megatron")


def _of_fsdp(config: Any, shape: Any, gpu: float) -> Estimate:
    from cw_plugin.verl_integration.doctor.memory import tracked  # loads verl's FSDP

    actor, world = config.actor_rollout_ref.actor, _gpus(config)
    engine = actor.fsdp_config
    ranks = engine.fsdp_size if engine.fsdp_size > 0 else world
    checkpointing = config.actor_rollout_ref.model.enable_gradient_checkpointing
    training = tracked.fsdp2_training(shape, ranks, _tokens(config, actor, "ppo"), checkpointing)
    chunked = engine.entropy_from_logits_with_chunking
    log_probs = tracked.fsdp2_log_probs(
        shape, ranks, _tokens(config, config.actor_rollout_ref.rollout, "log_prob"), chunked
    )
    # Adam of PyTorch needs the size of the weights once more while it steps (torch.optim, "foreach").
    held = {name: training.pop(name) for name in ("weights", "gradients", "optimizer")}
    work = max(sum(training.values()), held["weights"])
    parameters = _count(shape)
    host = 0.0
    if engine.offload_policy:
        host += sum(held.values()) * min(world, config.trainer.n_gpus_per_node)
        work = max(sum(training.values()), 0.0)
        held = dict.fromkeys(held, 0.0)
    resident = {
        "weights": 0.0 if engine.param_offload else held["weights"],
        "optimizer": 0.0 if engine.optimizer_offload else held["optimizer"],
    }
    host += (held["weights"] + held["optimizer"] - sum(resident.values())) * config.trainer.n_gpus_per_node
    if _has_reference(config):
        host += 4.0 * parameters / ranks * config.trainer.n_gpus_per_node  # in float32, always on the CPU
    log_prob_work = sum(size for name, size in log_probs.items() if name != "weights")
    stages = (
        _rollout(config, gpu, resident),
        Stage("log-probs", {**resident, "weights": held["weights"], "activations": log_prob_work, **_processes()}),
        Stage("training", {**held, "activations": work, **_processes()}),
    )
    return _estimate(config, shape, "FSDP2", parameters, stages, host, 12.0 * parameters)


def _of_megatron(config: Any, shape: Any, gpu: float) -> Estimate:
    from cw_plugin.verl_integration.doctor.memory import tracked

    actor, world = config.actor_rollout_ref.actor, _gpus(config)
    engine, reference = actor.megatron, config.actor_rollout_ref.ref.megatron
    tp, pp = engine.tensor_model_parallel_size, engine.pipeline_model_parallel_size
    parallel = megatron.Parallel(tp, pp, world // (tp * pp * engine.context_parallel_size))
    if parallel.dp < 1:
        raise OptionsError(f"TP={tp} and PP={pp} need {tp * pp} GPUs, and the run has {world}; lower them")
    shapes, transformer = parameter_shapes(shape), engine.override_transformer_config
    on_cpu = _on_cpu(actor.optim)
    tokens = _tokens(config, actor, "ppo")
    log_prob_tokens = _tokens(config, config.actor_rollout_ref.rollout, "log_prob")
    # Sequence parallelism divides what tensor parallelism alone leaves whole.
    kept, layer = tracked.one_layer(shape, math.ceil(tokens / tp))
    if transformer.recompute_granularity == "full":
        kept = 2.0 * tokens * shape.hidden_size / tp  # a layer's input
    entries = shape.vocab_size / tp
    chunk = CHUNK if engine.entropy_from_logits_with_chunking else log_prob_tokens
    found: list[tuple[Stage, ...]] = []
    for stage in {0, pp - 1}:
        held = megatron.static(megatron.stage_parameters(shapes, parallel, stage), parallel, on_cpu)
        in_flight = pp - stage  # micro-batches of which a stage keeps activations (1F1B)
        activations = kept * math.ceil(shape.num_hidden_layers / pp) * in_flight + layer
        log_prob_work = layer * log_prob_tokens / tokens
        if stage == pp - 1:
            activations += megatron.TRAINING_LOGITS * tokens * entries
            log_prob_work += (megatron.ENTROPY_LOGITS * log_prob_tokens + megatron.ENTROPY_COPY * chunk) * entries
        resident = {
            "weights": 0.0 if engine.param_offload else held["weights"],
            "gradients": 0.0 if engine.param_offload else held["gradients"],
            "optimizer": 0.0 if engine.optimizer_offload else held["optimizer"],
        }
        copy = held["weights"] if _has_reference(config) and not reference.param_offload else 0.0
        beside = {"reference": copy, **_processes()}
        found.append(
            (
                _rollout(config, gpu, {**resident, "reference": copy}),
                Stage("log-probs", {**resident, "weights": held["weights"], "activations": log_prob_work, **beside}),
                Stage("training", {**held, "activations": activations, **beside}),
            )
        )
    stages = max(found, key=lambda of_stage: max(stage.total for stage in of_stage))
    parameters, node = _count(shape), config.trainer.n_gpus_per_node
    a_rank = megatron.stage_parameters(shapes, parallel, 0)
    held = megatron.static(a_rank, parallel)
    offloaded = held["weights"] * engine.param_offload + held["optimizer"] * max(engine.optimizer_offload, on_cpu)
    if _has_reference(config) and reference.param_offload:
        offloaded += held["weights"]
    disk = float((megatron.WEIGHT + megatron.OPTIMIZER) * parameters)
    return _estimate(config, shape, "Megatron", parameters, stages, offloaded * node, disk)


def _estimate(
    config: Any, shape: Any, engine: str, parameters: int, stages: tuple[Stage, ...], host: float, checkpoint: float
) -> Estimate:
    trainer, steps = config.trainer, config.trainer.total_training_steps
    saved = 0 if trainer.save_freq <= 0 else math.ceil((steps or trainer.save_freq) / trainer.save_freq)
    kept = min(saved, trainer.get("max_actor_ckpt_to_keep") or saved)
    return Estimate(parameters, engine, _gpus(config), stages, _vllm(config, shape, parameters), host, checkpoint, kept)


def _vllm(config: Any, shape: Any, parameters: int) -> float:
    """Weights in bfloat16, and keys and values of every response that a GPU (or its tensor-parallel group) writes."""
    rollout, data = config.actor_rollout_ref.rollout, config.data
    tp = rollout.tensor_model_parallel_size
    responses = data.train_batch_size * rollout.n * tp / _gpus(config)
    tokens = min(responses, rollout.max_num_seqs) * (data.max_prompt_length + data.max_response_length)
    head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    a_token = 2 * 2 * shape.num_hidden_layers * shape.num_key_value_heads * head
    return (2.0 * parameters + tokens * a_token) / tp + VLLM_WORK


def _rollout(config: Any, gpu: float, resident: Mapping[str, float]) -> Stage:
    """vLLM takes gpu_memory_utilization of the whole GPU, whatever others hold there (vllm/v1/worker/utils.py,
    request_memory)."""
    share = config.actor_rollout_ref.rollout.gpu_memory_utilization * gpu * GIB
    return Stage("vLLM awake", {**resident, "vLLM": share, "processes": TRAINER})


def _processes() -> dict[str, float]:
    return {"processes": TRAINER + ASLEEP}


def _gpus(config: Any) -> int:
    return int(config.trainer.nnodes * config.trainer.n_gpus_per_node)


def _has_reference(config: Any) -> bool:
    """As verl's need_reference_policy."""
    return bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)


def _on_cpu(optimizer: Any) -> float:
    """The part of Megatron's optimizer that stays on the CPU, also while it steps."""
    override = optimizer.get("override_optimizer_config") or {}
    return float(override.get("optimizer_offload_fraction", 1.0)) if override.get("optimizer_cpu_offload") else 0.0


def _tokens(config: Any, section: Any, prefix: str) -> int:
    """Of the largest micro-batch."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    dynamic = section.use_dynamic_bsz if prefix == "ppo" else section.log_prob_use_dynamic_bsz
    if dynamic:
        return int(section[f"{prefix}_max_token_len_per_gpu"])
    return int(section[f"{prefix}_micro_batch_size_per_gpu"]) * longest


def _count(shape: Any) -> int:
    return sum(math.prod(size) for size in parameter_shapes(shape).values())
