"""Finds files that are results, and puts them in order."""

import os
import re
from glob import glob
from pathlib import Path

from cw_plugin.lab.errors import DataError


def require_path(path: Path) -> None:
    """Raise DataError if the path of a run does not exist."""
    if not os.path.exists(path):  # unlike Path.exists, it takes a name that is too long
        raise DataError(f"{path} does not exist; give the folder of a run")


def files_in(folder: Path, pattern: str) -> list[Path]:
    """List the files anywhere below a folder that match a pattern, sorted; none if it is no folder.

    Symbolic links to folders are followed, and each folder counts once. Hidden files are skipped unless the pattern
    names them or their folder, such as ``.hydra/config.yaml``.
    """
    found: list[Path] = []
    seen: set[str] = set()
    for place, folders, _ in os.walk(folder, followlinks=True):
        if os.path.realpath(place) in seen:
            folders.clear()
            continue
        seen.add(os.path.realpath(place))
        folders[:] = [name for name in folders if not name.startswith(".")]
        folders.sort(key=lambda name: os.path.islink(os.path.join(place, name)))  # its own folders first
        found += [Path(place, name) for name in glob(pattern, root_dir=place)]
    return sorted(path for path in found if path.is_file())


def in_order(file: Path) -> list[list[str | int]]:
    """Sort files by name, and numbers in it by their size: metrics.9.jsonl, metrics.10.jsonl, metrics.jsonl.

    Names of folders are compared one by one, so that what is in ``run`` comes before what is in ``run-1``.
    """
    return [[int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)] for name in file.parts]


def refuse_several(path: Path, runs: set[Path]) -> None:
    """Raise DataError if a folder that should hold one run holds several."""
    if len(runs) > 1:
        shown = ", ".join(str(run.relative_to(path)) for run in sorted(runs)[:3])
        fix = "give the folder of each as NAME=FOLDER, or its log"
        raise DataError(f"{path} holds {len(runs)} runs (such as {shown}); {fix}")
