"""What the arguments of ``cw-grpo`` mean: paths, and folders that a user has named."""

import os
from pathlib import Path

from cw_plugin.lab.errors import DataError


def expanded(path: str | Path) -> Path:
    """Replace ``~`` by the home folder, which the shell does not do in ``NAME=~/folder`` or in quotes."""
    return Path(os.path.expanduser(path))


def split_name(argument: str | Path) -> tuple[str | None, Path]:
    """Split ``NAME=FOLDER`` into the name, None if there is none, and the folder."""
    text = str(argument)
    if "=" not in text or os.path.exists(text):  # unlike Path.exists, it takes a name that is too long
        return None, expanded(text)
    name, _, folder = text.partition("=")
    if not name:
        raise DataError(f"{text!r} has no name before the =; write NAME=FOLDER or FOLDER")
    if not folder:
        raise DataError(f"{text!r} has no folder after the =; write NAME=FOLDER, with . for the current folder")
    return name, expanded(folder)
