"""Estimates whether parameters, optimizer and KV cache fit into the GPUs of this machine, to about ten per cent.

Bytes per parameter. FSDP with verl's defaults: float32 weights 4, gradients 4, Adam's moments 8, sharded over all GPUs.
Megatron: weights 2 and gradients 4 on every replica; main weights 4 and moments 8 sharded over the replicas. The
reference model: only weights. vLLM: 2, over its tensor-parallel ranks; the KV cache gets the rest of vLLM's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import first_line

GIB = 2**30


def parameter_count(model_config: Any, trust_remote_code: bool = False) -> int:
    """The number of parameters of the language model with this Hugging Face configuration; allocates no weights.

    Raises:
        ValueError: transformers has no language model for it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config, trust_remote_code=trust_remote_code)
    return sum(parameter.numel() for parameter in model.parameters())


def training_bytes(config: Any, parameters: int) -> float:
    """Bytes of weights, gradients and optimizer of actor and reference model on one GPU."""
    actor, ref = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    has_ref = actor.use_kl_loss or config.algorithm.use_kl_in_reward
    if actor.strategy == "megatron":
        engine, ref_engine = actor.megatron, ref.megatron
        shard = parameters / (engine.tensor_model_parallel_size * engine.pipeline_model_parallel_size)
        replicas = max(1, gpus * shard / parameters)
        weights, optimizer, reference = 6 * shard, 12 * shard / replicas, 2 * shard
    else:
        engine, ref_engine = actor.fsdp_config, ref.fsdp_config
        weights, optimizer, reference = 8 * parameters / gpus, 8 * parameters / gpus, 4 * parameters / gpus
    if engine.param_offload:
        weights = 0
    if engine.optimizer_offload:
        optimizer = 0
    if ref_engine.param_offload or not has_ref:
        reference = 0
    return weights + optimizer + reference


def cache_bytes(model: Any, tokens: int, parallel: int) -> float:
    """Bytes of a 16-bit KV cache of ``tokens`` tokens, on one of ``parallel`` GPUs."""
    heads = getattr(model, "num_key_value_heads", None) or model.num_attention_heads
    width = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
    return 2 * 2 * model.num_hidden_layers * heads * width * tokens / min(parallel, heads)


def gpu_memory() -> list[int]:
    """Memory of each GPU that this process sees, in bytes."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]


def estimate(config: Any) -> Iterator[Finding]:
    """Compare the estimate with the smallest GPU of this machine; no finding without a GPU."""
    from transformers import AutoConfig

    gpus = gpu_memory()
    if not gpus:
        return
    rollout, model_path = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model.path
    trust = config.actor_rollout_ref.model.trust_remote_code
    try:
        model = AutoConfig.from_pretrained(model_path, trust_remote_code=trust).get_text_config()
    except (OSError, ValueError):
        return  # reported by data.lengths()
    strategy = config.actor_rollout_ref.actor.strategy
    try:
        if strategy not in ("fsdp", "fsdp2", "megatron"):
            raise ValueError(f"the doctor does not know actor.strategy={strategy}")
        parameters = parameter_count(model, trust)
    except ValueError as error:
        yield Finding(
            "memory", f"not judged: {first_line(error)}", "the estimate is for language models under FSDP or Megatron",
            "watch the memory in the first step", fatal=False,
        )  # fmt: skip
        return
    memory = min(gpus)
    training = training_bytes(config, parameters)
    if training > 0.9 * memory:
        yield Finding(
            "memory",
            f"weights, gradients and optimizer take about {training / GIB:.0f} GiB of each GPU, which has "
            f"{memory / GIB:.0f}; activations come on top",
            "the first update would run out of memory",
            "more GPUs (trainer.nnodes=2), or actor_rollout_ref.actor.fsdp_config.param_offload=True and "
            "optimizer_offload=True (Megatron: actor_rollout_ref.actor.megatron.*)",
        )
    share = rollout.gpu_memory_utilization * memory
    weights = 2 * parameters / rollout.tensor_model_parallel_size
    longest = config.data.max_prompt_length + config.data.max_response_length
    one = cache_bytes(model, longest, rollout.tensor_model_parallel_size)
    if weights + one > share:
        yield Finding(
            "memory",
            f"vLLM's share of {share / GIB:.1f} GiB does not hold its weights ({weights / GIB:.1f}) and the KV cache "
            f"of one sequence ({one / GIB:.2f})",
            "vLLM would not start",
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={2 * rollout.tensor_model_parallel_size}, or a "
            "higher actor_rollout_ref.rollout.gpu_memory_utilization",
        )
    if not rollout.free_cache_engine and training + share > memory:
        yield Finding(
            "memory",
            f"training ({training / GIB:.0f} GiB) and vLLM's share ({share / GIB:.0f} GiB) are held at the same time "
            f"and exceed {memory / GIB:.0f} GiB",
            "one of the two would run out of memory",
            "actor_rollout_ref.rollout.free_cache_engine=True",
        )
