"""A Ray cluster that somebody else has started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RAY = Path(sys.prefix) / "bin" / "ray"


@contextmanager
def cluster(*arguments: str, **env: str) -> Iterator[tuple[str, str]]:
    """A Ray cluster that somebody else has started: its address, and its RAY_TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        command = [RAY, "start", "--head", "--block", "--port=0", "--include-dashboard=false", "--disable-usage-stats"]
        with open(Path(folder) / "stdout", "w+") as stdout:
            process = subprocess.Popen(
                [*command, *arguments], env=os.environ | {"RAY_TMPDIR": folder} | env, stdout=stdout, stderr=stdout
            )
            try:
                address = Path(folder) / "ray" / "ray_current_cluster"
                deadline = time.monotonic() + 120
                while not address.exists():
                    assert process.poll() is None and time.monotonic() < deadline, Path(stdout.name).read_text()
                    time.sleep(0.2)
                yield address.read_text(), folder
            finally:
                process.terminate()
                process.wait(timeout=60)
