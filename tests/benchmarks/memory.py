"""The peak of a process's memory, for the benchmarks."""

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path

import psutil
import torch


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Most memory held at once beyond what was held before, the result included."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # gives back what is free, so that using it counts
    Path("/proc/self/clear_refs").write_text("5")  # Linux counts the peak anew
    before = psutil.Process().memory_info().rss
    call()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(peak) - before
