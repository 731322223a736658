"""Which method the checkpoints of a run were trained with: a run is not resumed under another, on any host.

A trainer asks before it resumes, and writes ``cw_grpo.json`` beside the checkpoints. To go on under another scope or
kernel on purpose, resume a copy of the checkpoint in another folder.
"""

import json
import logging
from pathlib import Path
from typing import Any

from cw_plugin.errors import OptionsError
from cw_plugin.files import write_whole
from cw_plugin.options import Options

LOGGER = logging.getLogger("cw_plugin")
FILE = "cw_grpo.json"
NAMES = ("scope", "kernel")  # the options that make the method


def refuse_other_method(folder: Path, options: Options, prefix: str = "") -> None:
    """Raise OptionsError if the checkpoints in ``folder`` were trained under another scope or kernel.

    A damaged file is an OptionsError, too. Checkpoints of which nothing is known are accepted: an earlier version of
    this package wrote no file.

    Args:
        folder: holds the checkpoints.
        options: those of the run that would resume.
        prefix: what precedes an option's name in the host's configuration.
    """
    file = folder / FILE
    if not file.exists():
        return
    before = _read(file)
    for name in NAMES:
        now = getattr(options, name)
        if before.get(name, now) != now:
            raise OptionsError(
                f"{prefix}{name}={now!r} would resume the run in {folder}, which was trained with "
                f"{prefix}{name}={before[name]!r}",
                fix="use that, train in another folder, or resume a copy of the checkpoint",
            )


def _read(file: Path) -> dict[str, Any]:
    """The options that a file holds, by name."""
    content = file.read_bytes()
    try:
        options = json.loads(content)
    except ValueError:
        options = None
    if isinstance(options, dict):
        return options
    problem = f"{file} does not say which method the checkpoints have ({content!r:.100})"
    raise OptionsError(problem, fix="restore or remove it")


def write_method(folder: Path, options: Options, logger: logging.Logger = LOGGER) -> None:
    """Write down what the checkpoints in ``folder`` are trained with. An error is logged, and training continues."""
    try:
        write_whole(folder / FILE, json.dumps({name: getattr(options, name) for name in NAMES}))
    except OSError as error:
        problem = f"cw_grpo: {folder / FILE} cannot be written, so that a resumed run is not checked: {error}"
        logger.error(problem)  # noqa: TRY400 - a traceback would say no more
