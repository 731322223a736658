"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, content: str | Callable[[Path], object]) -> None:
    """Write ``path`` under another name, and rename it when it is complete and on the disk.

    Args:
        path: its folder is made where it is missing.
        content: the text, or a function that writes the file it is given.

    Raises:
        OSError: nothing is left under ``path`` but what was there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as folder:
        part = Path(folder) / path.name
        if isinstance(content, str):
            part.write_text(content, encoding="utf-8")
        else:
            content(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
