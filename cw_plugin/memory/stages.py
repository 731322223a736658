"""The stages of a training step, and what they share on every framework.

Stages take turns on the same GPUs. What processes need besides, :data:`TRAINER` and :data:`ASLEEP`, is an allowance.
No figure has been compared with a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

GIB = 2**30
ROOM = 0.9
"""Of a GPU's memory that may be planned with: the rest is for fragments of PyTorch's allocator, and for errors here."""
TRAINER = 1.5 * GIB
"""CUDA's context, cuBLAS's workspace and NCCL's buffers of the training process."""
ASLEEP = 2.0 * GIB
"""The same of vLLM's process while it sleeps, and its CUDA graphs, which sleep mode does not free."""
VLLM_WORK = 3.0 * GIB
"""Activations and CUDA graphs of vLLM, inside its share."""

SOLD_AS = {24: 23.5, 40: 39.4, 48: 44.4, 80: 79.1, 96: 94.5, 141: 139.8}
"""GiB that a GPU has, by the GB that it is sold as: what torch.cuda reports of the smallest such card."""


@dataclass(frozen=True)
class Stage:
    """Bytes on one GPU while a stage runs, by what they are for."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        """The bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Estimate:
    """What one run needs.

    Attributes:
        path: the model's folder or name.
        model: parameters.
        engine: what trains, in words, such as "FSDP2" or "DeepSpeed ZeRO-2"; "Megatron" for Megatron alone.
        gpus: how many train.
        stages: of a step, in their order.
        vllm: bytes that vLLM needs to answer all requests of one GPU at once: weights, keys and values, its own work.
        host: bytes of a node's memory that offloading takes.
        checkpoint: bytes of one checkpoint.
        checkpoints: how many of them there are at once, at most.
        folder: where the run writes them.
    """

    path: str
    model: int
    engine: str
    gpus: int
    stages: tuple[Stage, ...]
    vllm: float
    host: float
    checkpoint: float
    checkpoints: int
    folder: str

    @property
    def largest(self) -> Stage:
        """The stage that needs most."""
        return max(self.stages, key=lambda stage: stage.total)


def shortage(stage: Stage, gpu: float, name: str) -> str | None:
    """A sentence if a stage does not fit in a GPU of ``gpu`` GiB, called ``name``, with the room of :data:`ROOM`."""
    if stage.total <= ROOM * gpu * GIB:
        return None
    room = "more than there is" if stage.total > gpu * GIB else "with less than 10% of room"
    return (
        f"{stage.name} needs about {stage.total / GIB:.0f} of {gpu:.0f} GiB on each GPU {name}, {room} "
        "(calculated; cw-grpo memory shows it)"
    )


def vllm_memory(shape: "PretrainedConfig", parameters: int, tokens: float, tp: int = 1) -> float:
    """Bytes of vLLM on a GPU: weights in bfloat16, keys and values of ``tokens`` tokens, and its own work.

    Args:
        shape: the model's.
        parameters: how many it has.
        tokens: prompts and responses that are answered at once by a GPU, or by its tensor-parallel group.
        tp: the size of that group.
    """
    head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    bytes_per_token = 2 * 2 * shape.num_hidden_layers * shape.num_key_value_heads * head
    return float((2.0 * parameters + tokens * bytes_per_token) / tp + VLLM_WORK)
