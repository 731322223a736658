"""What a model's forward and backward passes hold, as PyTorch's own memory tracker counts it.

The model of transformers takes its steps under FakeTensorMode, where tensors have shapes and no content: it needs
neither a GPU nor the model's weights. Attention is PyTorch's, which like flash attention keeps no scores.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Forward = Callable[["PreTrainedModel"], tuple[torch.Tensor, Any]]
"""A framework's forward pass: log-probs, and what the framework still holds while the backward pass runs."""

_CPU = torch.device("cpu")


def make_model(shape: "PretrainedConfig", dtype: torch.dtype, recompute: bool) -> "PreTrainedModel":
    """The model of transformers in training mode, with gradient checkpointing if wanted."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(deepcopy(shape), dtype=dtype, attn_implementation="sdpa")
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def packed(tokens: int) -> Mapping[str, object]:
    """The model's arguments for one packed sequence."""
    ids = torch.ones(1, tokens, dtype=torch.long)
    return {"input_ids": ids, "position_ids": torch.arange(tokens)[None], "use_cache": False}


def sizes(tracker: MemTracker, moment: str) -> dict[str, int]:
    """The bytes of each of the tracker's kinds, "current" or at the "peak"; "Total" is their sum."""
    snapshot = tracker.get_tracker_snapshot(moment)[_CPU]
    return {getattr(kind, "value", kind): size for kind, size in snapshot.items()}


def beside_weights(found: Mapping[str, int]) -> float:
    """The bytes of everything but parameters and buffers."""
    return float(found["Total"] - found["Parameter"] - found["Buffer"])


def passes(shape: "PretrainedConfig", forward: Forward, recompute: bool) -> float:
    """The peak of both passes in bfloat16, in bytes, beside weights and the gradients that are kept.

    A gradient is dropped as soon as it is whole, because DeepSpeed then moves it to a buffer of its own.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = make_model(shape, torch.bfloat16, recompute)
        with MemTracker() as tracker:
            log_probs, _held = forward(model)
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(_drop_gradient)  # after the tracker's own
            log_probs.mean().backward()  # type: ignore[no-untyped-call]
            return beside_weights(sizes(tracker, "peak"))


def forward_pass(shape: "PretrainedConfig", forward: Forward) -> float:
    """The peak of a forward pass without gradients in bfloat16, in bytes, beside weights."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model = make_model(shape, torch.bfloat16, recompute=False)
        with MemTracker() as tracker:
            forward(model)
            return beside_weights(sizes(tracker, "peak"))


def _drop_gradient(parameter: torch.Tensor) -> None:
    parameter.grad = None
