"""A GPU in name only, for machines without one.

Its tensors say that they are on "pretend:0". They lie in the CPU's memory, and refuse what CUDA's tensors refuse: to
meet tensors of the CPU in one operation, and to become NumPy arrays. Used as::

    with Pretend() as device:
        result = function(on_device(tensor), ...)
    assert device.downloads == 1

The mode sees every operation of PyTorch, so that ``torch.zeros(3, device="pretend:0")`` works within it.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("pretend")
torch.pretend.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # torch.utils.checkpoint asks
DEVICE = torch.device("pretend", 0)

aten = torch.ops.aten
COPIES = (aten._to_copy, aten.copy_)
READS_A_VALUE = (aten._local_scalar_dense, aten.nonzero, aten.equal, aten._unique2, aten.unique_dim, aten.masked_select)
TAKES_INDICES_OF_THE_CPU = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)


class OnDevice(torch.Tensor):
    """A tensor on the device. ``memory`` is what it holds, a tensor of the CPU."""

    memory: torch.Tensor

    @staticmethod
    def __new__(cls, memory: torch.Tensor) -> "OnDevice":
        options = {"dtype": memory.dtype, "device": DEVICE, "requires_grad": memory.requires_grad}
        made = torch.Tensor._make_wrapper_subclass(
            cls, memory.size(), strides=memory.stride(), storage_offset=memory.storage_offset(), **options
        )
        made.memory = memory
        return made

    def tolist(self) -> Any:
        if Pretend.current is not None:
            Pretend.current.downloads += 1
        return self.memory.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy; use Tensor.cpu() first")

    def __getitem__(self, index: Any) -> torch.Tensor:
        # PyTorch itself would put a list on the device, where the mode does not see it.
        return super().__getitem__(torch.tensor(index) if isinstance(index, list) else index)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Pretend(TorchDispatchMode):
    """The device is there. Counts the copies from it to the CPU, values that Python reads among them, and back."""

    current: "Pretend | None" = None

    def __init__(self) -> None:
        super().__init__()
        self.downloads = self.uploads = 0

    def __enter__(self) -> "Pretend":
        self.outer, Pretend.current = Pretend.current, self
        self.factory = _Factory()
        self.factory.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        Pretend.current = self.outer
        super().__exit__(*error)
        self.factory.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Factory(TorchFunctionMode):
    """torch.tensor(..., device=...), which hides from the other mode how it gets to the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == DEVICE.type:
            return func(*args, **kwargs | {"device": "cpu"}).to(DEVICE)
        return func(*args, **kwargs)


def on_device(value: Any) -> Any:
    """A copy of a tensor on the device; tensors within lists, tuples and dictionaries too."""
    return tree_map_only(torch.Tensor, lambda tensor: OnDevice(tensor.detach().clone()), value)


def back(value: Any) -> Any:
    """The same on the CPU."""
    return tree_map_only(OnDevice, lambda tensor: tensor.memory, value)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    operation = func.overloadpacket
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    if ours and operation not in COPIES:
        _refuse_other_devices(func, args, tensors)
    to_device = _is_on_device(operation, args, kwargs, bool(ours))
    if Pretend.current is not None:
        _count(Pretend.current, operation, ours, to_device, isinstance(tensors[-1], OnDevice) if tensors else False)
    if kwargs.get("device") is not None and to_device:
        kwargs = kwargs | {"device": torch.device("cpu")}
    result = func(*back(args), **back(kwargs))
    of_memory = {id(tensor.memory): tensor for tensor in ours}  # an operation in place returns what it was given

    def wrapped(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in of_memory:
            return of_memory[id(tensor)]
        return OnDevice(tensor) if to_device else tensor

    return tree_map_only(torch.Tensor, wrapped, result)


def _is_on_device(operation: Any, args: Any, kwargs: dict[str, Any], ours: bool) -> bool:
    """Whether the result is on the device."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type == DEVICE.type
    if operation in COPIES:
        return isinstance(args[0], OnDevice)
    return ours


def _count(counts: Pretend, operation: Any, ours: list[OnDevice], to_device: bool, source_on_device: bool) -> None:
    if operation in READS_A_VALUE and ours:
        counts.downloads += 1
    if operation in COPIES and source_on_device and not to_device:
        counts.downloads += 1
    if operation in COPIES and not source_on_device and to_device:
        counts.uploads += 1


def _refuse_other_devices(func: Any, args: Any, tensors: list[torch.Tensor]) -> None:
    others = [tensor for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.ndim > 0]  # numbers may meet
    if func.overloadpacket in TAKES_INDICES_OF_THE_CPU and isinstance(args[0], OnDevice):
        indices = {id(index) for index in tree_leaves(args[1])}
        others = [tensor for tensor in others if id(tensor) not in indices]
    if others:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {DEVICE} and cpu")


def as_nccl(patch: Any) -> None:
    """From now on accelerate's gather, its padding and all_reduce take tensors of the device alone, as with NCCL."""
    from accelerate import Accelerator

    gather, pad, all_reduce = Accelerator.gather, Accelerator.pad_across_processes, dist.all_reduce

    def of_device(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, OnDevice):
            raise RuntimeError("No backend type associated with device type cpu")
        return tensor.memory

    def padded(self: Any, tensor: Any, dim: int = 0, **more: Any) -> Any:
        return OnDevice(pad(self, of_device(tensor), dim, **more))

    patch.setattr(Accelerator, "gather", lambda self, tensor: OnDevice(gather(self, of_device(tensor))))
    patch.setattr(Accelerator, "pad_across_processes", padded)
    patch.setattr(dist, "all_reduce", lambda tensor, *more, **named: all_reduce(of_device(tensor), *more, **named))
