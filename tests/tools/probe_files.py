"""What a probe in a process of OpenRLHF or SkyRL writes to the folder PROBE. Their environments have no pytest."""

import os
import time
from pathlib import Path
from typing import Any

import torch

Call = tuple[str, list[dict[str, Any]]]  # process, rows


def save(kind: str, rows: list[dict[str, Any]]) -> None:
    path = f"{os.environ['PROBE']}/{kind}-{os.getpid()}-{time.time_ns()}"
    torch.save(rows, path + ".part")
    os.rename(path + ".part", path + ".pt")


def saved(folder: Path, kind: str) -> list[Call]:
    """The rows of each call of :func:`save`, in order."""
    files = sorted((folder / "probe").glob(f"{kind}-*.pt"), key=lambda file: int(file.stem.split("-")[2]))
    return [(file.stem.split("-")[1], torch.load(file)) for file in files]
