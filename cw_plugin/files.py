"""Writes files that are complete or absent."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path


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


def is_remote(path: str) -> bool:
    """Whether a path names a place on another machine, such as ``hdfs://host/folder``."""
    return "://" in path
