"""SkyRL 0.4.0 and vLLM 0.30.0 without a GPU, for learning and for tests. SkyRL has no CPU mode.

With this folder on PYTHONPATH, Python imports this file in every process. :data:`PATCHES` lists what it changes, and
the docstring of each patch says why. The folder flash_attn/ beside it is a stand-in for that package.

SKYRL_CPU_GPUS: how many GPUs Ray is told that there are (2): one for each policy worker, and one for each vLLM engine.
"""

import os
import sys
import typing
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import typing_extensions
import wrapt

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM would take a share of the machine's memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # a dozen processes share the cores
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than it saves
}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)

# pydantic refuses typing's TypedDict before Python 3.12, and skyrl.tinker.types uses it. The program needs Python 3.12;
# the tests import its classes on earlier ones, too. Removed by: tests on Python 3.12 alone.
if sys.version_info < (3, 12):
    typing.TypedDict = typing_extensions.TypedDict


def _a_ray_of_its_own(ray: ModuleType) -> None:
    """ray.init starts a Ray that takes cores for GPUs, unless one is named or this is a job of Ray.

    It would else count no GPUs, or join another run's Ray on this machine.
    """

    @wrapt.patch_function_wrapper(ray, "init")
    def init(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        is_named = args or "address" in kwargs or "RAY_ADDRESS" in os.environ
        if not is_named and "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
            machine = {"num_gpus": int(os.environ.get("SKYRL_CPU_GPUS", "2")), "num_cpus": 16}
            kwargs = {"address": "local", "include_dashboard": False, "object_store_memory": 10**9, **machine, **kwargs}
        return wrapped(*args, **kwargs)


def _cuda_means_cpu(torch: ModuleType) -> None:
    """SkyRL calls these functions unconditionally, moves tensors with Tensor.cuda(), and its device is
    torch.cuda.current_device(). vLLM asks for the index of the device."""
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.accelerator.synchronize = lambda *_: None
    torch.accelerator.current_device_index = lambda: 0
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_available = lambda: False  # torch's CUDA build may ask device_count
    torch.Tensor.cuda = lambda self, *_, **__: self


def _processes_meet_by_gloo(distributed: ModuleType) -> None:
    """FSDP's processes communicate by NCCL."""

    @wrapt.patch_function_wrapper(distributed, "init_process_group")
    def init_process_group(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs | {"backend": "gloo"})


def _device_mesh_of_the_cpu(device_mesh: ModuleType) -> None:
    """The meshes of FSDP and of the policy workers are made for "cuda"."""

    @wrapt.patch_function_wrapper(device_mesh, "init_device_mesh")
    def init_device_mesh(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        return wrapped("cpu", *args[1:], **kwargs)


def _buffers_arrive_on_the_cpu(fsdp_utils: ModuleType) -> None:
    """All ranks but the first receive a model's buffers into tensors with device="cuda"."""
    import torch

    class CudaMeansCpu(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    @wrapt.patch_function_wrapper(fsdp_utils, "_sync_non_persistent_buffers")
    def sync_buffers(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        with CudaMeansCpu():
            return wrapped(*args, **kwargs)


def _flash_attn_may_be_a_folder(import_utils: ModuleType) -> None:
    """transformers 5.8 looks up the distribution of the package flash_attn, which our stand-in lacks. Later ones ask
    whether there is one."""
    import_utils.PACKAGE_DISTRIBUTION_MAPPING.setdefault("flash_attn", ["a stand-in"])


def _prompts_are_counted_in_this_process(dataset: ModuleType) -> None:
    """SkyRL starts eight processes for the prompts' lengths, each of which imports SkyRL anew: minutes on two cores."""

    @wrapt.patch_function_wrapper(dataset.PromptDataset, "__init__")
    def init(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs | {"num_workers": 0})


def _no_affinity(worker: ModuleType) -> None:
    """A worker binds itself to the memory of its GPU, by libnuma."""
    worker.DistributedTorchRayActor._set_numa_affinity = lambda self, rank: None


def _no_peer_access(utils: ModuleType) -> None:
    """SkyRL asks two GPUs whether they reach each other's memory."""
    utils.peer_access_supported = lambda max_num_gpus_per_node: False


class _Gloo:
    """The part of vLLM's NCCL communicator that SkyRL's weight transfer uses: broadcast."""

    def __init__(self, host: str, port: int, rank: int, world_size: int) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self._group = stateless_init_torch_distributed_process_group(host, port, rank, world_size, backend="gloo")

    def broadcast(self, tensor: Any, src: int) -> None:
        import torch

        options = torch.distributed.BroadcastOptions()
        options.rootRank = src
        self._group.broadcast([tensor], options).wait()


def _policy_and_vllm_meet_by_gloo(nccl_common: ModuleType) -> None:
    """The policy sends its weights to vLLM by NCCL."""

    def meet(address: str, port: int, rank: int, world_size: int, device: Any) -> _Gloo:
        return _Gloo(address, port, rank, world_size)

    nccl_common.stateless_init_process_group = meet


def _weights_are_sent_one_by_one(nccl_engine: ModuleType) -> None:
    """Tensors are packed into buffers, each with a CUDA stream. Here each is broadcast alone, in the same order."""
    import torch

    def send(iterator: Iterable[Any], group: _Gloo, src: int, post_iter_func: Any, **_: Any) -> None:
        for item in iterator:
            group.broadcast(post_iter_func(item).contiguous(), src)

    def receive(iterator: Iterable[Any], group: _Gloo, src: int, post_unpack_func: Any, **_: Any) -> None:
        for name, (shape, dtype) in iterator:
            weight = torch.empty(shape, dtype=dtype)
            group.broadcast(weight, src)
            post_unpack_func([(name, weight)])

    nccl_engine.packed_nccl_broadcast_producer = send
    nccl_engine.packed_nccl_broadcast_consumer = receive


def _weights_stay_loadable(custom_ops: ModuleType) -> None:
    """With oneDNN, vLLM packs a linear layer's weight, and the next update of it fails: no attribute weight_loader."""
    if not hasattr(custom_ops, "_supports_onednn"):
        raise RuntimeError("vllm._custom_ops has no _supports_onednn; these patches are for vllm-cpu 0.30.0")
    custom_ops._supports_onednn = False


PATCHES = {
    "ray": _a_ray_of_its_own,
    "torch": _cuda_means_cpu,
    "torch.distributed": _processes_meet_by_gloo,
    "torch.distributed.device_mesh": _device_mesh_of_the_cpu,
    "skyrl.backends.skyrl_train.distributed.fsdp_utils": _buffers_arrive_on_the_cpu,
    "skyrl.backends.skyrl_train.workers.worker": _no_affinity,
    "skyrl.train.dataset.dataset": _prompts_are_counted_in_this_process,
    "skyrl.train.utils.utils": _no_peer_access,
    "transformers.utils.import_utils": _flash_attn_may_be_a_folder,
    "vllm.distributed.weight_transfer.nccl_common": _policy_and_vllm_meet_by_gloo,
    "vllm.distributed.weight_transfer.nccl_engine": _weights_are_sent_one_by_one,
    "vllm._custom_ops": _weights_stay_loadable,
}
for module, patch in PATCHES.items():
    wrapt.register_post_import_hook(patch, module)
