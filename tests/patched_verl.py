"""Copies of the installed verl with the patches of patches/ applied; what is installed stays as it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import verl
from interpreter import ROOT

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
