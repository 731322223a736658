"""DeepSpeed's engine on a CPU: the bytes that rank 0 holds of weights, gradients and optimizer.

python -m torch.distributed.run ... zero_engine.py STAGE MODEL OUT
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import AutoModelForCausalLM


def held(tensors: Iterable[Any]) -> int:
    """Bytes of the storages of all tensors, each storage once."""
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def main(stage: int, model: str, out: str) -> None:
    deepspeed.ops.__compatible_ops__.clear()  # or it compiles an operation for shared memory
    deepspeed.init_distributed("gloo")
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    engine, *_ = deepspeed.initialize(
        model=loaded,
        optimizer=torch.optim.AdamW(loaded.parameters()),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 2,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 1000},
        },
    )
    zero = engine.optimizer
    for _ in range(3):  # a step, and the first micro-batch of the next
        ids = torch.arange(12)[None]
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    if stage == 2:
        weights = list(engine.module.parameters())
        masters = zero.single_partition_of_fp32_groups
        gradients = [gradient for group in zero.all_grad_tensors.values() for gradient in group or ()]
    else:
        weights, masters = (
            [parameter.ds_tensor for parameter in engine.module.parameters()],
            zero.fp32_partitioned_groups_flat,
        )
        gradients = [zero.grad_partitions_flat_buffer]
    moments = [value for state in zero.optimizer.state.values() for value in state.values()]
    found = {"weights": held(weights), "gradients": held(gradients), "optimizer": held([*masters, *moments])}
    if engine.global_rank == 0:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
