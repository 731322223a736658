"""Writes files that are complete or absent, and finds files that are results."""

import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path, PurePath

from cw_plugin.errors import DataError


def write_whole(path: Path, content: str | Callable[[Path], object]) -> None:
    """Write a file under a temporary name, and rename it once it is complete and on disk.

    The temporary name begins with a dot and ends with ``.part``, so no reader takes the file for a result if the
    process is killed while it writes. A missing folder is created. After an OSError, ``path`` is unchanged.

    Args:
        path: the file.
        content: the text, or a function that writes to the path that it gets.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        if isinstance(content, str):
            part.write_text(content, encoding="utf-8")
        else:
            content(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def files_in(folder: Path, pattern: str) -> list[Path]:
    """List the files anywhere below a folder that match a pattern, sorted; none if it is no folder.

    Hidden files are skipped unless the pattern names them or their folder, such as ``.hydra/config.yaml``.
    """
    if not os.path.isdir(folder):  # unlike Path.is_dir, it takes a name that is too long
        return []
    named = PurePath(pattern).parts

    def is_hidden(path: Path) -> bool:
        return any(part.startswith(".") and part not in named for part in path.relative_to(folder).parts)

    return sorted(path for path in folder.rglob(pattern) if path.is_file() and not is_hidden(path))


def is_remote(path: str) -> bool:
    """Whether a path names a place on another machine, such as ``hdfs://host/folder``."""
    return "://" in path


def in_order(file: Path) -> list[str | int]:
    """Sort files by name, and numbers in it by their size: metrics.9.jsonl, metrics.10.jsonl, metrics.jsonl."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(file))]


def refuse_several(path: Path, runs: set[Path]) -> None:
    """Raise DataError if a folder that should hold one run holds several."""
    if len(runs) > 1:
        shown = ", ".join(str(run.relative_to(path)) for run in sorted(runs)[:3])
        raise DataError(f"{path} holds {len(runs)} runs (such as {shown}); give the folder of each as NAME=FOLDER")
