"""Weights go from verl's trainer to its rollout servers through files, because NCCL needs GPUs.

For verl's asynchronous programs: ``checkpoint_engine.backend=file custom_backend_module=file_checkpoint_engine``.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.rollout.utils import ensure_async_iterator

FOLDER = Path(os.environ["FILE_CHECKPOINT_ENGINE"])


@CheckpointEngineRegistry.register("file")
class FileCheckpointEngine(CheckpointEngine):
    """A file for each version of the weights, which the trainer's first rank writes."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master, self.version = is_master, 0

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return {}, {}

    def init_process_group(self) -> None:
        self.version += 1

    def finalize(self) -> None: ...

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        tensors = {name: weight.detach().cpu().clone() async for name, weight in ensure_async_iterator(weights)}
        if self.is_master:
            file = FOLDER / f"{self.version}.tmp"
            torch.save(tensors, file)
            file.rename(file.with_suffix(".pt"))

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        file = FOLDER / f"{self.version}.pt"
        while not file.exists():
            await asyncio.sleep(0.05)
        for name, weight in torch.load(file).items():
            yield name, weight
