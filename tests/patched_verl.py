"""Copies of the installed verl with the patches of patches/ applied; what is installed stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import verl

ROOT = Path(__file__).parent.parent
PARTS = sorted((ROOT / "patches").glob("*.patch"))
SITE_PACKAGES = Path(verl.__file__).parent.parent  # verl's wheel brings its own tests, too


def copy_verl(folder: Path, *parts: Path, include: tuple[str, ...] = ("verl/*", "tests/*")) -> Path:
    """A copy of verl and of its tests of the trainer, with the parts applied. The wheel lacks docs and examples."""
    for name in ("verl", "tests/trainer"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SITE_PACKAGES / name, folder / name, ignore=ignored, dirs_exist_ok=True)
    shutil.copy(SITE_PACKAGES / "tests" / "__init__.py", folder / "tests")
    for part in parts:
        subprocess.run(["git", "apply", *(f"--include={pattern}" for pattern in include), part], cwd=folder, check=True)
    return folder


def run_python(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Python, for which verl is the copy in a folder, and cw_plugin this repository."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VERL_")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (folder, ROOT, ROOT / "tests")))
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment | env, capture_output=True, text=True, timeout=300)
