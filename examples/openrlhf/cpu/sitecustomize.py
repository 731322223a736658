"""OpenRLHF 0.11.2 and vLLM without a GPU, for learning and for tests. OpenRLHF has no CPU mode.

With this folder on PYTHONPATH, Python imports this file in every process. :data:`PATCHES` lists what it changes, and
the docstring of each patch says why. The folder flash_attn/ beside it is a stand-in for that package.

OPENRLHF_CPU_GPUS: how many GPUs Ray is told that there are (3): one for each actor, and one for each vLLM engine.
"""

import os
import sys
from types import ModuleType
from typing import Any

import wrapt

ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",  # of DeepSpeed
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM would take a share of the machine's memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # a dozen processes share the cores
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_EXTENSIONS_DIR": f"{sys.prefix}/torch_extensions",  # what install.sh has compiled
}
for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)


def _a_ray_of_its_own(ray: ModuleType) -> None:
    """ray.init starts a Ray that takes cores for GPUs, unless one is named or this is a job of Ray.

    It would else count no GPUs, or join another run's Ray on this machine.
    """

    @wrapt.patch_function_wrapper(ray, "init")
    def init(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        is_named = args or "address" in kwargs or "RAY_ADDRESS" in os.environ
        if not is_named and "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
            machine = {"num_gpus": int(os.environ.get("OPENRLHF_CPU_GPUS", "3")), "num_cpus": 16}
            kwargs = {"address": "local", "include_dashboard": False, "object_store_memory": 10**9, **machine, **kwargs}
        return wrapped(*args, **kwargs)


class _Device(str):
    """The device "cpu", which OpenRLHF also writes as a number: ``f"cuda:{torch.cuda.current_device()}"``."""

    def __format__(self, _: str) -> str:
        return "0"


def _cuda_calls_do_nothing(torch: ModuleType) -> None:
    """OpenRLHF calls these of torch.cuda unconditionally; its device is torch.cuda.current_device()."""
    for name in ("set_device", "synchronize", "current_stream"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.cuda.current_device = lambda: _Device("cpu")


def _device_mesh_of_the_cpu(deepspeed: ModuleType) -> None:
    """The strategy makes its device mesh for "cuda"."""

    @wrapt.patch_function_wrapper(deepspeed, "init_device_mesh")
    def init_device_mesh(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        return wrapped("cpu", *args[1:], **kwargs)


class _Gloo:
    """What OpenRLHF uses of vLLM's PyNcclCommunicator, which needs NCCL: broadcast."""

    def __init__(self, host: str, port: int, rank: int, world_size: int, device: Any) -> None:
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self._group = stateless_init_torch_distributed_process_group(host, port, rank, world_size, backend="gloo")

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        import torch

        options = torch.distributed.BroadcastOptions()
        options.rootRank = src
        self._group.broadcast([tensor], options).wait()


def _weights_by_gloo(distributed_util: ModuleType) -> None:
    """The actor sends its weights to vLLM by NCCL."""
    distributed_util.stateless_init_process_group = _Gloo


def _weights_arrive_on_the_cpu(vllm_worker_wrap: ModuleType) -> None:
    """vLLM's worker receives them into a tensor with device="cuda"."""
    import torch

    class CudaMeansCpu(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("device") == "cuda":
                kwargs["device"] = "cpu"
            return func(*args, **kwargs)

    @wrapt.patch_function_wrapper(vllm_worker_wrap.WorkerWrap, "update_weight")
    def update_weight(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        with CudaMeansCpu():
            return wrapped(*args, **kwargs)


def _weights_stay_loadable(custom_ops: ModuleType) -> None:
    """With oneDNN, vLLM packs a linear layer's weight, and the next update of it fails: no attribute weight_loader."""
    if not hasattr(custom_ops, "_supports_onednn"):
        raise RuntimeError("vllm._custom_ops has no _supports_onednn; these patches are for vllm-cpu 0.29.0")
    custom_ops._supports_onednn = False


PATCHES = {
    "ray": _a_ray_of_its_own,
    "torch": _cuda_calls_do_nothing,
    "openrlhf.utils.deepspeed.deepspeed": _device_mesh_of_the_cpu,
    "openrlhf.utils.distributed_util": _weights_by_gloo,
    "openrlhf.trainer.ray.vllm_worker_wrap": _weights_arrive_on_the_cpu,
    "vllm._custom_ops": _weights_stay_loadable,
}
for module, patch in PATCHES.items():
    wrapt.register_post_import_hook(patch, module)
