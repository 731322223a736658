"""What a training step of verl holds, as PyTorch's own memory trackers count it.

The model of transformers takes its steps under FakeTensorMode, where tensors have shapes and no content: it needs
neither a GPU nor the model's weights. Attention is PyTorch's, which like flash attention keeps no scores.
"""

import contextlib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from verl.utils.fsdp_utils import apply_fsdp2
from verl.utils.torch_functional import entropy_from_logits, entropy_from_logits_with_chunking

Parts = dict[str, float]  # bytes on one GPU, by what they are for

# What each of the tracker's kinds is called here; all others are activations.
_KINDS = {
    "Sharded Param": "weights",
    "Buffer": "weights",
    "Sharded Grad": "gradients",
    "OptState": "optimizer",
    "Unsharded Param": "gathered",
    "Unsharded Grad": "gathered",
    "All Gather": "gathered",
    "Reduce Scatter": "gathered",
}


class _FlashCrossEntropy(torch.autograd.Function):
    """The memory of flash-attn 2.8.3's cross entropy with inplace_backward=True, of which verl takes log-probs.

    Logits are kept, and their gradient overwrites them (flash_attn/ops/triton/cross_entropy.py).
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        sums = torch.empty(logits.shape[0], dtype=torch.float32)
        ctx.save_for_backward(logits, sums)
        return torch.empty_like(sums)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor
        logits, _sums = ctx.saved_tensors
        return logits.mul_(1.0)


@contextlib.contextmanager
def _ranks(number: int) -> Iterator[DeviceMesh]:
    """Makes this process rank 0 of ``number`` that only pretend to talk to each other."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
    try:
        yield init_device_mesh("cpu", (number,))
    finally:
        dist.destroy_process_group()


def _make_model(shape: PretrainedConfig, dtype: torch.dtype, recompute: bool) -> PreTrainedModel:
    """The model of transformers in training mode, with gradient checkpointing if wanted."""
    model = AutoModelForCausalLM.from_config(deepcopy(shape), dtype=dtype, attn_implementation="sdpa")
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def _packed(tokens: int) -> Mapping[str, object]:
    """The model's arguments for one packed sequence."""
    ids = torch.ones(1, tokens, dtype=torch.long)
    return {"input_ids": ids, "position_ids": torch.arange(tokens)[None], "use_cache": False}


def _sizes(tracker: MemTracker, moment: str) -> dict[str, int]:
    """The bytes of each of the tracker's kinds, "current" or at the "peak"; "Total" is their sum."""
    snapshot = tracker.get_tracker_snapshot(moment)[torch.device("cpu")]
    return {getattr(kind, "value", kind): size for kind, size in snapshot.items()}


def _beside_weights(sizes: Mapping[str, int]) -> float:
    """The bytes of everything but parameters and buffers."""
    return float(sizes["Total"] - sizes["Parameter"] - sizes["Buffer"])


def _parts_at_peak(tracker: MemTracker) -> Parts:
    parts = dict.fromkeys([*_KINDS.values(), "activations"], 0.0)
    for kind, size in _sizes(tracker, "peak").items():
        if kind != "Total":
            parts[_KINDS.get(kind, "activations")] += size
    return parts


def _sharded(model: PreTrainedModel, mesh: DeviceMesh) -> PreTrainedModel:
    """The model as verl's apply_fsdp2 shards it: each layer, untied embeddings, and the rest.

    Weights are gathered in bfloat16, and gradients are in float32.
    """
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=True)
    apply_fsdp2(model, {"mesh": mesh, "mp_policy": precision, "reshard_after_forward": True}, {})
    return model


def fsdp2_training(shape: PretrainedConfig, ranks: int, tokens: int, recompute: bool) -> Parts:
    """The peak of a training step of verl's FSDP2 engine, after the first.

    It holds Adam in float32, gradients of earlier micro-batches, and a micro-batch of ``tokens`` tokens with
    temperature and log-probs. The calculation takes ten seconds of one core for 28 layers.
    """
    with _ranks(ranks) as mesh, FakeTensorMode(allow_non_fake_inputs=True):
        model = _sharded(_make_model(shape, torch.float32, recompute), mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        with FSDPMemTracker(model, optimizer) as tracker:
            with torch.autocast("cpu", torch.bfloat16):
                output = model(**_packed(tokens))
                logits = output.logits[0] / torch.ones(tokens, 1, dtype=torch.bfloat16)
                loss = _FlashCrossEntropy.apply(logits).mean()
            del output, logits  # verl's forward_step returns
            loss.backward()
            return _parts_at_peak(tracker)


def fsdp2_log_probs(shape: PretrainedConfig, ranks: int, tokens: int, chunked: bool) -> Parts:
    """The peak of computing old log-probs and entropy, the latter ``chunked`` or for all tokens at once.

    For all tokens at once it is an upper bound, because verl compiles that function.
    """
    with _ranks(ranks) as mesh, FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model = _sharded(_make_model(shape, torch.float32, recompute=False), mesh)
        with FSDPMemTracker(model) as tracker, torch.autocast("cpu", torch.bfloat16):
            output = model(**_packed(tokens))
            logits = output.logits[0] / torch.ones(tokens, 1, dtype=torch.bfloat16)
            if chunked:
                entropy_from_logits_with_chunking(logits)
            else:
                entropy_from_logits(logits.float())
            return _parts_at_peak(tracker)


def one_layer(shape: PretrainedConfig, tokens: int) -> tuple[float, float]:
    """Bytes that one layer in bfloat16 keeps for its backward pass, and the peak of both passes, weights apart."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = _make_model(shape, torch.bfloat16, recompute=False).model
        hidden = torch.ones(1, tokens, shape.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        positions = model.rotary_emb(hidden, torch.arange(tokens)[None])
        with MemTracker() as tracker:
            output = model.layers[0](hidden, position_embeddings=positions)
            kept = _beside_weights(_sizes(tracker, "current"))
            output.sum().backward()
            peak = _beside_weights(_sizes(tracker, "peak"))
    return kept, peak
