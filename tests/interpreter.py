"""Starts Python, for tests whose subject is a process of its own, or a release that the environment does not have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def python(
    *arguments: object, path: tuple[Path, ...] = (), cwd: Path = ROOT, timeout: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What Python prints with these arguments. It imports from ``path``, then from this repository and its tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    folders = [*path, ROOT, ROOT / "tests", inherited.get("PYTHONPATH", "")]
    inherited["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    command = [sys.executable, *map(str, arguments)]
    env = inherited | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
