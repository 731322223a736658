"""The platform "cpu" for verl's PlatformRegistry."""

import contextlib
import types
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def do_nothing(*_: Any, **__: Any) -> None:
    """What a CPU has no need of."""


def _device_module() -> ModuleType:
    """``torch.cpu`` plus what verl calls on ``torch.cuda``, as functions that do nothing or report zero."""
    import psutil
    import torch

    module = types.ModuleType("verl_cpu.device_module", _device_module.__doc__)
    vars(module).update({name: getattr(torch.cpu, name) for name in torch.cpu.__all__})
    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"):
        setattr(module, name, do_nothing)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(module, name, lambda *_: 0)
    memory = psutil.virtual_memory
    vars(module).update(
        mem_get_info=lambda *_: (memory().available, memory().total),
        get_device_name=lambda *_: "cpu",
        get_rng_state=torch.get_rng_state,  # of checkpoints
        set_rng_state=torch.set_rng_state,
    )
    return module


def define_platform(platform_manager: ModuleType) -> None:
    """Registers the platform "cpu" (no patch: verl's own registry), because verl ships cuda, npu and rocm."""
    import torch

    @platform_manager.PlatformRegistry.register(platform="cpu")
    class PlatformCPU(platform_manager.PlatformBase):  # type: ignore[name-defined]
        """A CPU that verl's Ray layer counts as "GPU": declare them with ``ray_kwargs.ray_init.num_gpus``."""

        device_name = "cpu"
        vendor_name = "cpu"

        device_module = _device_module()
        manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
        set_device = synchronize = empty_cache = set_allocator_settings = do_nothing
        profiler_start = profiler_stop = cudart = do_nothing

        def is_available(self) -> bool:
            return True

        def is_platform_available(self, use_smi_check: bool = False) -> bool:
            return False  # not detected automatically: VERL_PLATFORM=cpu selects it

        def current_device(self) -> Any:
            return torch.device("cpu")

        def device_count(self) -> int:
            return 1

        def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CPU_VISIBLE_DEVICES"

        @contextlib.contextmanager
        def nvtx_range(self, msg: str) -> Iterator[None]:
            yield

        def ray_resource_name(self) -> str:
            return "GPU"

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False  # weights reach vLLM through shared memory
