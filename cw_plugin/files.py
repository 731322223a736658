"""Files that are there whole or not at all, and finding those that are results."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path, PurePath


def write_whole(path: Path, content: str | Callable[[Path], object]) -> None:
    """Write ``path`` under another name, and rename it when it is complete and on the disk.

    The other name begins with a dot and ends with ``.part``, so that no reader takes it for a result if the process is
    killed on the way.

    Args:
        path: its folder is made where it is missing.
        content: the text, or a function that writes the file it is given.

    Raises:
        OSError: ``path`` is as it was before.
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


def find(folder: Path, pattern: str) -> list[Path]:
    """Files anywhere below ``folder`` that match ``pattern``, sorted; hidden ones, and those in hidden folders, only
    where the pattern itself names them (``.hydra/config.yaml``)."""
    named = PurePath(pattern).parts

    def hidden(path: Path) -> bool:
        return any(part.startswith(".") and part not in named for part in path.relative_to(folder).parts)

    return sorted(path for path in folder.rglob(pattern) if not hidden(path))


def expanded(path: str | Path) -> Path:
    """``path`` with ``~`` as the home folder, which the shell leaves as it is in ``NAME=~/folder`` and in quotes."""
    return Path(os.path.expanduser(path))
