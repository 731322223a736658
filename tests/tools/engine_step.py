"""Training steps at the level of verl's engines, under torchrun; run by test_engines.py.

    torchrun --nproc-per-node=N engine_step.py STEPS

STEPS is a JSON file with the arguments of :func:`step` for each step.
"""

import functools
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from verl import DataProto
from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.utils import tensordict_utils as tu
from verl.workers import config as workers
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

# Activations are computed again in backward, as in the recipes of examples/.
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def make_engine(backend: str, tp: int, pp: int, lr: float, model: str, rows: int, half: bool) -> Any:
    batching = dict.fromkeys(("use_dynamic_bsz", "use_remove_padding", "forward_only"), False)
    batching |= dict.fromkeys(("micro_batch_size_per_gpu", "infer_micro_batch_size_per_gpu"), rows)
    steps = {"lr": lr, "total_training_steps": 10}
    if backend == "megatron":
        parallel = tp > 1
        engine_config: Any = workers.McoreEngineConfig(
            **batching,
            vanilla_mbridge=True,
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            sequence_parallel=parallel,
            override_transformer_config={"masked_softmax_fusion": False, "sequence_parallel": parallel} | RECOMPUTE,
        )
        if not half:
            object.__setattr__(engine_config, "dtype", "float32")  # the configuration admits half precisions alone
        optimizer_config: Any = workers.McoreOptimizerConfig(**steps, lr_decay_steps=10, lr_warmup_steps=0)
    else:
        precision = {"param_dtype": "fp32", "reduce_dtype": "fp32"}
        engine_config = workers.FSDPEngineConfig(
            **batching, strategy=backend, dtype="float32", use_torch_compile=False, mixed_precision=precision
        )
        optimizer_config = workers.FSDPOptimizerConfig(**steps)
    model_config = workers.HFModelConfig(
        path=model, use_remove_padding=False, override_config={"attn_implementation": "eager"}
    )
    model_config.model_type = "language_model"
    engine = EngineRegistry.new(
        model_type="language_model",
        backend=backend,
        model_config=model_config,
        engine_config=engine_config,
        optimizer_config=optimizer_config,
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def held(engine: Any) -> dict[str, int]:
    """Bytes of this rank's weights, gradients and optimizer."""

    def size(tensors: Iterable[torch.Tensor]) -> int:
        return sum((tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes for tensor in tensors)

    def moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]

    if isinstance(engine.module, torch.nn.Module):  # FSDP2
        parameters = list(engine.module.parameters())
        gradients = [parameter.grad for parameter in parameters]
        return {"weights": size(parameters), "gradients": size(gradients), "optimizer": size(moments(engine.optimizer))}
    buffers = [buffer for chunk in engine.module for buffer in chunk.buffers]
    weights, gradients = [buffer.param_data for buffer in buffers], [buffer.grad_data for buffer in buffers]
    optimizers = getattr(engine.optimizer, "chained_optimizers", [engine.optimizer])
    copies = [copy for each in optimizers for group in each.shard_fp32_from_float16_groups for copy in group]
    of_adam = [moment for each in optimizers for moment in moments(each.optimizer)]
    return {"weights": size(weights), "gradients": size(gradients), "optimizer": size(copies + of_adam)}


def tensordict(tensors: dict[str, torch.Tensor], **sizes: Any) -> Any:
    """A batch as verl's trainers give it to an engine; ``sizes`` are those of the batch and of its micro-batches."""
    info = {"temperature": 1.0, "global_token_num": tensors["attention_mask"].sum(-1).tolist()}
    data = left_right_2_no_padding(DataProto.from_single_dict(tensors, meta_info=info).to_tensordict())
    tu.assign_non_tensor(data, **sizes, calculate_entropy=False)
    return data


def log_probs_of(engine: Any, data: Any) -> torch.Tensor | None:
    """Log-probs of a batch's responses, padded on the right; None in a process that does not have them."""
    with engine.eval_mode():
        output = engine.infer_batch(data).get("model_output")
    return no_padding_2_padding(output["log_probs"], data) if output else None


def step(
    backend: str,
    batch_file: str,
    out: str,
    tp: int = 1,
    pp: int = 1,
    lr: float = 0.0,
    save: str | None = None,
    half: bool = False,
) -> None:
    """Save what the engine computed.

    Args:
        batch_file: has the model's path and the tensors of a batch.
        out: gets log-probs, the gradient norm and sigma of verl's ppo_loss with loss_mode=cw_grpo, and the bytes that
            rank 0 holds after a step.
        save: a folder for a Megatron checkpoint of the weights after it; ``out`` then has what verl would send to vLLM.
        half: Megatron computes in bfloat16, not in float32.
    """
    batch = torch.load(batch_file, weights_only=False)
    model, rewards, uids = (batch.pop(key) for key in ("model", "rewards", "uids"))
    rows = len(rewards)
    engine = make_engine(backend, tp, pp, lr, model, rows, half)
    sizes = {"global_batch_size": rows, "micro_batch_size_per_gpu": rows, "use_dynamic_bsz": False}

    def from_last_stage(value: Any) -> Any:
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return [value for value in values if value is not None][-1]

    log_probs = log_probs_of(engine, tensordict(batch, **sizes))
    results = {"log_probs": from_last_stage(None if log_probs is None else log_probs.float())}

    optimizer_step = engine.optimizer_step

    def step_and_measure() -> Any:
        norm = optimizer_step()
        results["held"] = {} if backend == "megatron" and not half else held(engine)
        return norm

    engine.optimizer_step = step_and_measure  # the gradients are gone when train_mode ends

    advantages, _ = get_adv_estimator_fn("grpo")(
        token_level_rewards=rewards, response_mask=batch["response_mask"], index=uids
    )
    config = workers.ActorConfig(
        strategy=backend,
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=rows,
        use_kl_loss=False,
        policy_loss=workers.PolicyLossConfig(loss_mode="cw_grpo"),
    )
    with engine.train_mode():
        output = engine.train_batch(
            tensordict({**batch, "advantages": advantages, "old_log_probs": results["log_probs"]}, **sizes),
            loss_function=functools.partial(ppo_loss, config=config),
        )
    metrics = None
    if engine.is_mp_src_rank_with_outputs():
        sigma = output["metrics"]["cw_grpo/sigma"]
        metrics = {"grad_norm": float(output["metrics"]["grad_norm"])}
        metrics["cw_grpo/sigma"] = float((sigma[0] if isinstance(sigma, list) else sigma).aggregate())
    results |= from_last_stage(metrics)
    if save:
        # Set by use_dist_checkpointing=True, with which the engine would also load its first weights in this format.
        engine.checkpoint_mananager.use_dist_checkpointing = True
        engine.save_checkpoint(save, global_step=1)
        results["weights"] = {name: weight.clone() for name, weight in engine.get_per_tensor_param()[0]}
    if dist.get_rank() == 0:
        torch.save(results, out)
    if backend == "megatron":
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for arguments in json.loads(Path(sys.argv[1]).read_text()):
        step(**arguments)
    dist.destroy_process_group()
