"""For the slow tests of OpenRLHF and SkyRL: how a run is killed, and what its probe has written in each process."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import torch


def end(process: subprocess.Popen[str]) -> None:
    """A killed driver leaves Ray's processes for a moment."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(10)


def saved(folder: Path, kind: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """(process, rows) of each call, in order."""
    files = sorted((folder / "probe").glob(f"{kind}-*.pt"), key=lambda file: int(file.stem.split("-")[2]))
    return [(file.stem.split("-")[1], torch.load(file)) for file in files]
