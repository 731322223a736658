"""The memory of each stage of a training step of verl, on the GPU that needs most.

Weights, gradients and optimizer are exact, and a test compares them with what verl's engines hold. Activations of FSDP2
are counted by PyTorch's trackers; those of Megatron are an upper bound, from the same model of transformers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import NotCalculatedError, OptionsError
from cw_plugin.files import is_remote
from cw_plugin.lab.doctor.ground_truths import named_files
from cw_plugin.lab.doctor.memory import megatron
from cw_plugin.memory.models import parameter_count, parameter_shapes, read_shape
from cw_plugin.memory.stages import ASLEEP, GIB, TRAINER, Estimate, Stage, vllm_memory

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CHUNK = 2048  # tokens; verl's entropy_from_logits_chunk_size


def estimate(config: DictConfig, gpu: float) -> Estimate:
    """What a run needs.

    Args:
        config: verl's composed configuration.
        gpu: the GiB of a GPU.

    Raises:
        NotCalculatedError: an engine other than FSDP and Megatron, LoRA, or a model that verl has yet to fetch.
        OptionsError: a model that transformers does not know, or a setting that memory depends on is not set.
    """
    model = config.actor_rollout_ref.model
    if model.get("lora_rank"):
        raise NotCalculatedError(
            "the memory of LoRA is not calculated",
            fix="remove actor_rollout_ref.model.lora_rank to see what a run without LoRA needs",
        )
    if is_remote(model.path):  # verl copies it when it starts
        raise NotCalculatedError(
            f"{model.path} is on another machine, and what it needs is not calculated", fix="give a folder of this one"
        )
    shape = read_shape(model.path, bool(model.get("trust_remote_code")))
    strategy = config.actor_rollout_ref.actor.strategy
    if strategy == "megatron":
        return _of_megatron(config, shape, gpu)
    if strategy in ("fsdp", "fsdp2"):
        return _of_fsdp(config, shape, gpu)
    raise NotCalculatedError(f"the memory of actor.strategy={strategy} is not calculated", fix="use fsdp2 or megatron")


def _of_fsdp(config: DictConfig, shape: "PretrainedConfig", gpu: float) -> Estimate:
    from cw_plugin.lab.doctor.memory import tracked  # loads verl's FSDP

    engine = config.actor_rollout_ref.actor.fsdp_config
    gpus_per_node = config.trainer.n_gpus_per_node
    ranks = engine.fsdp_size if engine.fsdp_size > 0 else _gpus(config)
    recompute = config.actor_rollout_ref.model.enable_gradient_checkpointing
    training = tracked.fsdp2_training(shape, ranks, _training_tokens(config), recompute)
    log_probs = tracked.fsdp2_log_probs(
        shape, ranks, _log_prob_tokens(config), engine.entropy_from_logits_with_chunking
    )
    kept = ("weights", "gradients", "optimizer")  # between two passes; the rest is the work of one
    held = {name: training[name] for name in kept}
    passes = sum(size for name, size in training.items() if name not in kept)
    log_prob_work = sum(size for name, size in log_probs.items() if name != "weights")
    is_fsdp2 = config.actor_rollout_ref.actor.strategy == "fsdp2"
    if is_fsdp2 and engine.offload_policy:
        offloaded = sum(held.values())
        held = resident = dict.fromkeys(kept, 0.0)
        training_work = passes
    else:
        resident = {
            "weights": 0.0 if engine.param_offload else held["weights"],
            "optimizer": 0.0 if engine.optimizer_offload else held["optimizer"],
        }
        offloaded = held["weights"] + held["optimizer"] - sum(resident.values())
        # Adam of PyTorch needs the size of the weights once more while it steps (torch.optim, "foreach").
        training_work = max(passes, held["weights"])
    parameters = parameter_count(shape)
    if _has_reference(config):
        offloaded += 4.0 * parameters / ranks  # in float32, always on the CPU
    stages = (
        _rollout(config, gpu, resident),
        Stage("log-probs", {**resident, "weights": held["weights"], "activations": log_prob_work, **_processes()}),
        Stage("training", {**held, "activations": training_work, **_processes()}),
    )
    return Estimate(
        path=config.actor_rollout_ref.model.path,
        model=parameters,
        engine="FSDP2" if is_fsdp2 else "FSDP1 (calculated as FSDP2)",
        gpus=_gpus(config),
        stages=stages,
        vllm=_vllm(config, shape, parameters),
        host=offloaded * gpus_per_node,
        checkpoint=12.0 * parameters,
        checkpoints=_at_once(config),
        folder=config.trainer.default_local_dir,
    )


def _of_megatron(config: DictConfig, shape: "PretrainedConfig", gpu: float) -> Estimate:
    parallel = _parallel(config)
    shapes = parameter_shapes(shape)
    layer = _layer_of_megatron(config, shape)
    # The first rank of the pipeline keeps activations of most micro-batches, and the last has the logits.
    ends = []
    for pipeline_rank in {0, parallel.pp - 1}:
        on_rank = megatron.parameters_of(shapes, parallel, pipeline_rank)
        ends.append(_stages_of_megatron(config, shape, layer, on_rank, pipeline_rank, gpu))
    stages = max(ends, key=lambda stages: max(stage.total for stage in stages))
    parameters = parameter_count(shape)
    held = megatron.static(megatron.parameters_of(shapes, parallel, 0), parallel)
    return Estimate(
        path=config.actor_rollout_ref.model.path,
        model=parameters,
        engine="Megatron",
        gpus=_gpus(config),
        stages=stages,
        vllm=_vllm(config, shape, parameters),
        host=_offloaded_by_megatron(config, held) * config.trainer.n_gpus_per_node,
        checkpoint=float((megatron.WEIGHT + megatron.OPTIMIZER) * parameters),
        checkpoints=_at_once(config),
        folder=config.trainer.default_local_dir,
    )


def _parallel(config: DictConfig) -> megatron.Parallel:
    engine, world = config.actor_rollout_ref.actor.megatron, _gpus(config)
    tp, pp = engine.tensor_model_parallel_size, engine.pipeline_model_parallel_size
    cp = engine.context_parallel_size
    parallel = megatron.Parallel(tp, pp, world // (tp * pp * cp))
    if parallel.dp < 1:
        sizes = f"TP={tp}, PP={pp} and CP={cp}"
        raise OptionsError(f"{sizes} need {tp * pp * cp} GPUs, and the run has {world}", fix="lower them")
    return parallel


@dataclass(frozen=True)
class _Layer:
    """Bytes of one layer's activations for a micro-batch: kept for the backward pass, and the peak of both passes."""

    kept: float
    peak: float


def _layer_of_megatron(config: DictConfig, shape: "PretrainedConfig") -> _Layer:
    from cw_plugin.lab.doctor.memory import tracked

    engine, tokens = config.actor_rollout_ref.actor.megatron, _training_tokens(config)
    tp = engine.tensor_model_parallel_size
    # Sequence parallelism divides what tensor parallelism alone leaves whole.
    kept, peak = tracked.one_layer(shape, math.ceil(tokens / tp))
    if engine.override_transformer_config.recompute_granularity == "full":
        kept = 2.0 * tokens * shape.hidden_size / tp  # a layer's input
    return _Layer(kept, peak)


def _stages_of_megatron(
    config: DictConfig, shape: "PretrainedConfig", layer: _Layer, parameters: int, pipeline_rank: int, gpu: float
) -> tuple[Stage, ...]:
    """The stages of a training step, on a GPU of this pipeline rank, which has ``parameters``."""
    engine, reference = config.actor_rollout_ref.actor.megatron, config.actor_rollout_ref.ref.megatron
    parallel = _parallel(config)
    tokens, log_prob_tokens = _training_tokens(config), _log_prob_tokens(config)
    in_flight = parallel.pp - pipeline_rank  # micro-batches of which it keeps activations (1F1B)
    training_work = layer.kept * math.ceil(shape.num_hidden_layers / parallel.pp) * in_flight + layer.peak
    log_prob_work = layer.peak * log_prob_tokens / tokens
    if pipeline_rank == parallel.pp - 1:
        entries = shape.vocab_size / parallel.tp
        chunk = CHUNK if engine.entropy_from_logits_with_chunking else log_prob_tokens
        training_work += megatron.TRAINING_LOGITS * tokens * entries
        log_prob_work += (megatron.ENTROPY_LOGITS * log_prob_tokens + megatron.ENTROPY_COPY * chunk) * entries
    held = megatron.static(parameters, parallel, _optimizer_on_cpu(config))
    resident = {
        "weights": 0.0 if engine.param_offload else held["weights"],
        "gradients": 0.0 if engine.param_offload else held["gradients"],
        "optimizer": 0.0 if engine.optimizer_offload else held["optimizer"],
    }
    copy = held["weights"] if _has_reference(config) and not reference.param_offload else 0.0
    beside = {"reference": copy, **_processes()}
    return (
        _rollout(config, gpu, {**resident, "reference": copy}),
        Stage("log-probs", {**resident, "weights": held["weights"], "activations": log_prob_work, **beside}),
        Stage("training", {**held, "activations": training_work, **beside}),
    )


def _offloaded_by_megatron(config: DictConfig, held: Mapping[str, float]) -> float:
    """Bytes that a rank puts into the node's memory, of those that it holds on the GPU and the CPU together."""
    engine, reference = config.actor_rollout_ref.actor.megatron, config.actor_rollout_ref.ref.megatron
    share_of_optimizer = 1.0 if engine.optimizer_offload else _optimizer_on_cpu(config)
    offloaded = held["optimizer"] * share_of_optimizer
    if engine.param_offload:
        offloaded += held["weights"]
    if _has_reference(config) and reference.param_offload:
        offloaded += held["weights"]
    return offloaded


def checkpoints_after(config: DictConfig, step: int) -> int:
    """How many checkpoints a run writes after this step; at least one, if its length is not known."""
    every = int(config.trainer.save_freq)
    if every <= 0:
        return 0
    steps = length(config)
    if steps is None:
        return 1
    return max(math.ceil(steps / every) - step // every, 0)


def length(config: DictConfig) -> int | None:
    """The steps of a run, by setting or from the rows of its data; None if these cannot be read here."""
    if config.trainer.total_training_steps:
        return int(config.trainer.total_training_steps)
    files = named_files(config, "train_files")
    if any(map(is_remote, files)):
        return None
    try:
        rows = sum(pq.ParquetFile(Path(file).expanduser()).metadata.num_rows for file in files)
    except (OSError, pa.ArrowException):  # check_files says so
        return None
    most = config.data.get("train_max_samples") or -1
    if most > 0:
        rows = min(rows, most)
    return int(rows // config.data.train_batch_size * config.trainer.total_epochs)


def _at_once(config: DictConfig) -> int:
    """How many checkpoints of a run there are at once, at most."""
    written = checkpoints_after(config, 0)
    kept = int(config.trainer.get("max_actor_ckpt_to_keep") or written)
    if kept == 1:
        kept = 2  # verl deletes the old one when the new one is written; of several, it deletes the oldest first
    return min(written, kept)


def _vllm(config: DictConfig, shape: "PretrainedConfig", parameters: int) -> float:
    """Weights in bfloat16, and keys and values of every response that a GPU (or its tensor-parallel group) writes."""
    rollout, data = config.actor_rollout_ref.rollout, config.data
    tp = rollout.tensor_model_parallel_size
    responses = data.train_batch_size * rollout.n * tp / _gpus(config)
    tokens = min(responses, rollout.max_num_seqs) * (data.max_prompt_length + data.max_response_length)
    return vllm_memory(shape, parameters, tokens, tp)


def _rollout(config: DictConfig, gpu: float, resident: Mapping[str, float]) -> Stage:
    """The stage in which vLLM answers.

    vLLM takes gpu_memory_utilization of the whole GPU, whatever others hold there (vllm/v1/worker/utils.py,
    request_memory).
    """
    share = config.actor_rollout_ref.rollout.gpu_memory_utilization * gpu * GIB
    return Stage("vLLM awake", {**resident, "vLLM": share, "processes": TRAINER})


def _processes() -> dict[str, float]:
    return {"processes": TRAINER + ASLEEP}


def _gpus(config: DictConfig) -> int:
    return int(config.trainer.nnodes * config.trainer.n_gpus_per_node)


def _has_reference(config: DictConfig) -> bool:
    """Whether the run has a reference policy, as verl's need_reference_policy says."""
    return bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)


def _optimizer_on_cpu(config: DictConfig) -> float:
    """The part of Megatron's optimizer that stays on the CPU, also while it steps."""
    override = config.actor_rollout_ref.actor.optim.get("override_optimizer_config") or {}
    if not override.get("optimizer_cpu_offload"):
        return 0.0
    return float(override.get("optimizer_offload_fraction", 1.0))


def _training_tokens(config: DictConfig) -> int:
    """The tokens of the largest micro-batch in training."""
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        return int(actor.ppo_max_token_len_per_gpu)
    return _micro_batch(config, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu") * _longest(config)


def _log_prob_tokens(config: DictConfig) -> int:
    """The tokens of the largest micro-batch in which old log-probs are computed."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.log_prob_use_dynamic_bsz:
        return int(rollout.log_prob_max_token_len_per_gpu)
    return _micro_batch(config, "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu") * _longest(config)


def _micro_batch(config: DictConfig, setting: str) -> int:
    """The responses of a micro-batch on one GPU."""
    size = OmegaConf.select(config, setting)
    if size is None:
        raise OptionsError(f"{setting} is not set, and memory depends on it", fix="set it")
    return int(size)


def _longest(config: DictConfig) -> int:
    return int(config.data.max_prompt_length + config.data.max_response_length)
