"""Megatron-core 0.16.1 and mbridge 0.15.1 without CUDA, TransformerEngine or Apex; the list is in patches.py.

Megatron-core's own "local" layers, in plain torch, do the computation. A TransformerEngine that runs on a CPU would
remove every patch below that has no "Removed by" of its own.
"""

import copy
import functools
import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from verl_cpu.platform import do_nothing


def pretend_cuda_when_made(name: str) -> Callable[[ModuleType], None]:
    """In a process that makes a ``name``, device="cuda", .cuda() and torch.cuda mean the CPU.

    Why: Megatron-core names the device "cuda" in about a hundred places. Removed by: Megatron-core asking for a device.
    """

    def install(module: ModuleType) -> None:
        @wrapt.patch_function_wrapper(module, f"{name}.__init__")
        def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
            _pretend_cuda()
            return wrapped(*args, **kwargs)

    return install


def _cuda_means_cpu() -> Any:
    """A mode of torch's functions, where it is entered: ``device="cuda"`` means the CPU, and memory is not pinned."""
    import torch
    from torch.overrides import TorchFunctionMode

    class CudaMeansCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device")).startswith("cuda"):
                kwargs["device"] = torch.device("cpu")
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            result = func(*args, **kwargs)
            if func is torch.Tensor.type and len(args) == 1 and not kwargs:
                return result.replace("torch.", "torch.cuda.", 1)  # the optimizers sort parameters by this name
            return result

    return CudaMeansCpu()


@functools.cache
def _pretend_cuda() -> None:
    import torch

    def itself(self: Any, *_: Any, **__: Any) -> Any:
        return self

    for name, replacement in {
        "current_device": lambda: torch.device("cpu"),
        "synchronize": do_nothing,
        "empty_cache": do_nothing,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    }.items():
        setattr(torch.cuda, name, replacement)
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = do_nothing
    for cls in (torch.Tensor, torch.nn.Module):
        setattr(cls, "cuda", itself)  # noqa: B010
    _cuda_means_cpu().__enter__()


def random_state_of_the_cpu(random: ModuleType) -> None:
    """The state of the CPU's generator in place of CUDA's.

    Why: model-parallel dropout and initialisation save and restore CUDA's state. Removed by: Megatron-core asking for a
    device.
    """
    import torch

    vars(random).update(
        _get_cuda_rng_state=lambda device=None, clone=False, graph_safe=False: torch.get_rng_state(),
        _set_cuda_rng_state=lambda state, device=-1, graph_safe=False: torch.set_rng_state(state),
    )


def recomputation_on_the_cpu(random: ModuleType) -> None:
    """While activations are recomputed, device="cuda" means the CPU.

    Why: recomputation is a part of backward, for which autograd does not keep the mode that holds in forward. Removed
    by: Megatron-core asking for a device.
    """

    @wrapt.patch_function_wrapper(random, "CheckpointFunction.backward")
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
        with _cuda_means_cpu():
            return wrapped(*args, **kwargs)


def causal_attention_without_a_mask(dot_product_attention: ModuleType) -> None:
    """Attention without verl's padding mask, and sequence by sequence where sequences are packed.

    Why: True means valid in verl's mask. TransformerEngine ignores the mask for causal attention, but Megatron-core's
    own attention reads True as masked. Padding is on the right, so plain causal attention gives the same. Only
    TransformerEngine's kernels accept packed sequences.
    """
    import torch

    @wrapt.patch_function_wrapper(dot_product_attention, "DotProductAttention.forward")
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
        def call(
            query, key, value, attention_mask=None, attn_mask_type=None, attention_bias=None, packed_seq_params=None
        ):
            if packed_seq_params is None:
                return wrapped(query, key, value, None, attn_mask_type, attention_bias, None)
            bounds = packed_seq_params.cu_seqlens_q_padded
            bounds = (packed_seq_params.cu_seqlens_q if bounds is None else bounds).tolist()
            outputs = []
            for start, end in itertools.pairwise(bounds):
                if end > start:
                    one = [tensor[start:end].unsqueeze(1) for tensor in (query, key, value)]
                    outputs.append(wrapped(*one, None, attn_mask_type).squeeze(1))
            return torch.cat(outputs)

        return call(*args, **kwargs)


def torch_norm_under_sequence_parallelism(torch_norm: ModuleType) -> None:
    """torch's norm is made without sequence_parallel, and its parameters are marked for the all-reduce.

    Why: Megatron-core refuses the setting for torch's norm, and those of TransformerEngine and Apex need CUDA.
    """
    make = torch_norm.WrappedTorchNorm.__new__

    def __new__(cls: type, config: Any, *args: Any, **kwargs: Any) -> Any:
        plain = copy.copy(config)
        plain.sequence_parallel = False
        norm = make(cls, plain, *args, **kwargs)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # their gradients are summed over the ranks
        return norm

    torch_norm.WrappedTorchNorm.__new__ = __new__


def adam_state_before_loading(distrib_optimizer: ModuleType) -> None:
    """A fresh Adam gets zero moments before its state_dict is taken, which resuming does.

    Why: torch's Adam has none before its first step, and Megatron-core counts on those of Apex or TransformerEngine.
    """
    import torch

    @wrapt.patch_function_wrapper(distrib_optimizer, "DistributedOptimizer.state_dict")
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
        state = instance.optimizer.state
        if not state:
            for group in instance.optimizer.param_groups:
                for parameter in group["params"]:
                    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    state[parameter] = {"step": torch.tensor(0.0), **moments}
        return wrapped(*args, **kwargs)


def local_layers(llm_bridge: ModuleType) -> None:
    """Layers of Megatron-core in place of TransformerEngine's, which mbridge and verl's merger always ask for.

    On disk, the weights have the same names with both. Removed by: a check of both whether TransformerEngine is there.
    """

    @wrapt.patch_function_wrapper(llm_bridge, "get_gpt_decoder_block_spec")
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
        return wrapped(*args, **{**kwargs, "use_transformer_engine": False})


def norms_of_their_own(qwen2: ModuleType) -> None:
    """Adds the two norms of a layer to Qwen2's weight maps.

    Why: they are part of TransformerEngine's linear layers, and modules of their own in Megatron-core's.
    """
    layer = "model.layers.{layer_number}."
    norms = {
        "input_layernorm.weight": [layer + "input_layernorm.weight"],
        "pre_mlp_layernorm.weight": [layer + "post_attention_layernorm.weight"],
    }
    bridge = qwen2.Qwen2Bridge
    bridge._OTHER_MAPPING = {**bridge._OTHER_MAPPING, **norms}
    bridge._MLP_MAPPING = {**bridge._MLP_MAPPING, **norms}  # whatever has "mlp" in its name is looked up here
