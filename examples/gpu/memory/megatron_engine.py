"""What a rank of verl's Megatron engine needs: bfloat16, and Megatron-core's distributed optimizer.

Megatron-LM's own calculation of what a rank holds is megatron/training/theoretical_memory_usage.py, which
Megatron-core's package does not have. Its bytes for each parameter: 2 for the weight, 4 for the gradient, and 12 for
the optimizer (a float32 copy and Adam's two moments), the last divided among data-parallel ranks.
"""

import math
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from estimate import (
    Estimate,
    NotCalculatedError,
    Stage,
    gpus,
    has_reference,
    log_prob_tokens,
    stages_of,
    training_tokens,
)
from omegaconf import DictConfig
from shapes import parameter_shapes, read_shape
from tracked import one_layer
from transformers import PretrainedConfig

WEIGHT, GRADIENT, OPTIMIZER = 2, 4, 12  # bytes a parameter
# Bytes for each token and entry of the vocabulary. Megatron's Float16Module casts logits to float32, verl divides them
# by the temperature, and the cross entropy turns them into probabilities, all in place; the backward pass of that
# division makes a second copy. For entropy, verl clones the logits, and subtracts their maximum in a third copy.
TRAINING_LOGITS, ENTROPY_LOGITS, ENTROPY_COPY = 8, 8, 4
CHUNK = 2048  # tokens; verl's entropy_from_logits_chunk_size


class Parallel(NamedTuple):
    """Tensor-, pipeline- and data-parallel sizes."""

    tp: int
    pp: int
    dp: int


def parameters_of(shapes: Mapping[str, tuple[int, ...]], parallel: Parallel, pipeline_rank: int) -> int:
    """Those of a GPU of a pipeline rank. A matrix or bias is divided among tensor-parallel ranks, a norm is not."""
    layers = 1 + max(int(name.split(".")[2]) for name in shapes if name.startswith("model.layers."))
    tied = not any(name.startswith("lm_head.") for name in shapes)
    first, last = pipeline_rank == 0, pipeline_rank == parallel.pp - 1
    total = 0
    for name, shape in shapes.items():
        if name.startswith("model.layers."):
            is_there = int(name.split(".")[2]) * parallel.pp // layers == pipeline_rank
        elif name.startswith("model.embed_tokens."):
            is_there = first or (last and tied)
        else:
            is_there = last
        if is_there:
            total += prod(shape) if "norm" in name else prod(shape) // parallel.tp
    return total


def static(parameters: int, parallel: Parallel) -> dict[str, float]:
    """Bytes of weights, gradients and optimizer of a rank that has ``parameters``."""
    return {
        "weights": float(WEIGHT * parameters),
        "gradients": float(GRADIENT * parameters),
        "optimizer": OPTIMIZER * parameters / parallel.dp,
    }


def needs(config: DictConfig, gpu: float) -> Estimate:
    """As :func:`estimate.estimate`, for ``actor.strategy=megatron``."""
    parallel = _parallel(config)
    shape = read_shape(config.actor_rollout_ref.model.path)
    shapes = parameter_shapes(shape)
    # The first rank of the pipeline keeps activations of most micro-batches, and the last has the logits.
    ends = [_stages(config, shape, shapes, parallel, rank, gpu) for rank in {0, parallel.pp - 1}]
    parameters = sum(map(prod, shapes.values()))
    return Estimate(
        engine="Megatron",
        parameters=parameters,
        stages=max(ends, key=lambda stages: max(stage.total for stage in stages)),
        host=_offloaded(config, static(parameters_of(shapes, parallel, 0), parallel)) * config.trainer.n_gpus_per_node,
        checkpoint=float((WEIGHT + OPTIMIZER) * parameters),
    )


def _parallel(config: DictConfig) -> Parallel:
    engine, world = config.actor_rollout_ref.actor.megatron, gpus(config)
    tp, pp, cp = (engine[f"{kind}_parallel_size"] for kind in ("tensor_model", "pipeline_model", "context"))
    parallel = Parallel(tp, pp, world // (tp * pp * cp))
    if parallel.dp < 1:
        raise NotCalculatedError(f"TP={tp}, PP={pp} and CP={cp} need {tp * pp * cp} GPUs, and the run has {world}")
    override = config.actor_rollout_ref.actor.optim.get("override_optimizer_config") or {}
    if override.get("optimizer_cpu_offload"):
        raise NotCalculatedError("the memory of optimizer_cpu_offload is not calculated; use optimizer_offload")
    return parallel


def _stages(
    config: DictConfig,
    shape: PretrainedConfig,
    shapes: Mapping[str, tuple[int, ...]],
    parallel: Parallel,
    pipeline_rank: int,
    gpu: float,
) -> tuple[Stage, ...]:
    """The stages of a training step, on a GPU of this pipeline rank."""
    engine, reference = config.actor_rollout_ref.actor.megatron, config.actor_rollout_ref.ref.megatron
    tokens, tokens_of_log_probs = training_tokens(config), log_prob_tokens(config)
    kept_of_layer, peak_of_layer = _layer(config, shape, tokens)
    in_flight = parallel.pp - pipeline_rank  # micro-batches of which it keeps activations (1F1B)
    layers = math.ceil(shape.num_hidden_layers / parallel.pp)
    training_work = kept_of_layer * layers * in_flight + peak_of_layer
    log_prob_work = peak_of_layer * tokens_of_log_probs / tokens
    if pipeline_rank == parallel.pp - 1:
        entries = shape.vocab_size / parallel.tp
        chunk = CHUNK if engine.entropy_from_logits_with_chunking else tokens_of_log_probs
        training_work += TRAINING_LOGITS * tokens * entries
        log_prob_work += (ENTROPY_LOGITS * tokens_of_log_probs + ENTROPY_COPY * chunk) * entries
    held = static(parameters_of(shapes, parallel, pipeline_rank), parallel)
    resident = {
        "weights": 0.0 if engine.param_offload else held["weights"],
        "gradients": 0.0 if engine.param_offload else held["gradients"],
        "optimizer": 0.0 if engine.optimizer_offload else held["optimizer"],
    }
    if has_reference(config) and not reference.param_offload:
        resident["reference"] = held["weights"]
    return stages_of(config, gpu, held, resident, log_prob_work, training_work)


def _layer(config: DictConfig, shape: PretrainedConfig, tokens: int) -> tuple[float, float]:
    """Bytes of one layer's activations: kept for the backward pass, and the peak of both passes."""
    engine = config.actor_rollout_ref.actor.megatron
    tp = engine.tensor_model_parallel_size
    # Sequence parallelism divides what tensor parallelism alone leaves whole.
    kept, peak = one_layer(shape, math.ceil(tokens / tp))
    if engine.override_transformer_config.recompute_granularity == "full":
        kept = 2.0 * tokens * shape.hidden_size / tp  # a layer's input
    return kept, peak


def _offloaded(config: DictConfig, held: Mapping[str, float]) -> float:
    """Bytes that a rank puts into the node's memory, of those that it holds on the GPU and the CPU together."""
    engine, reference = config.actor_rollout_ref.actor.megatron, config.actor_rollout_ref.ref.megatron
    offloaded = held["optimizer"] if engine.optimizer_offload else 0.0
    if engine.param_offload:
        offloaded += held["weights"]
    if has_reference(config) and reference.param_offload:
        offloaded += held["weights"]
    return offloaded
