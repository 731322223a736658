"""What a rank of verl's Megatron engine holds: bfloat16, and Megatron-core's distributed optimizer.

Megatron-LM's own calculation of the same is megatron/training/theoretical_memory_usage.py, which Megatron-core's
package does not have. Its bytes for each parameter: 2 for the weight, 4 for the gradient, and 12 for the optimizer
(a float32 copy and Adam's two moments), the last divided among data-parallel ranks.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

WEIGHT, GRADIENT, OPTIMIZER = 2, 4, 12  # bytes a parameter
# Bytes for each token and entry of the vocabulary. Megatron's Float16Module casts logits to float32, verl divides them
# by the temperature, and the cross entropy turns them into probabilities, all in place; the backward pass of that
# division makes a second copy. For entropy, verl clones the logits, and subtracts their maximum in a third copy.
TRAINING_LOGITS, ENTROPY_LOGITS, ENTROPY_COPY = 8, 8, 4


class Parallel(NamedTuple):
    """Tensor-, pipeline- and data-parallel sizes."""

    tp: int
    pp: int
    dp: int


def parameters_of(shapes: Mapping[str, tuple[int, ...]], parallel: Parallel, pipeline_rank: int) -> int:
    """Parameters of one GPU of a pipeline rank.

    A matrix or bias is divided among tensor-parallel ranks, a norm is not.

    Args:
        shapes: those of :func:`~cw_plugin.memory.models.parameter_shapes`.
        parallel: the sizes of the run.
        pipeline_rank: from 0.
    """
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


def static(parameters: int, parallel: Parallel, optimizer_on_cpu: float = 0.0) -> dict[str, float]:
    """Bytes of weights, gradients and optimizer of a rank that has ``parameters``."""
    optimizer = OPTIMIZER * parameters / parallel.dp
    return {
        "weights": float(WEIGHT * parameters),
        "gradients": float(GRADIENT * parameters),
        "optimizer": optimizer * (1 - optimizer_on_cpu),
    }
