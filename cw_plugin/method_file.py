"""``cw_grpo.json``: which scope, weights and settings the checkpoints in a folder were trained with.

:class:`cw_plugin.run.Run` asks before a run begins, and writes the file with its first batch, on every host, in
the main process. verl's own grpo makes no such run, nor does the policy loss cw_grpo alone: neither asks.
"""

import json
import logging
from pathlib import Path

from cw_plugin.errors import OptionsError
from cw_plugin.files import write_whole
from cw_plugin.options import Options

FILE = "cw_grpo.json"
NAMES = ("scope", "weights", "settings")  # the options that make the method


def refuse_other_method(folder: Path, options: Options) -> None:
    """Raise OptionsError if the checkpoints in a folder were trained under another scope, other weights or settings.

    A damaged file is an OptionsError, too. Checkpoints of which nothing is known, because there is no file, are
    accepted: they may be of a run without the method.

    Args:
        folder: holds the checkpoints.
        options: those of the run that begins.
    """
    file = folder / FILE
    if not file.exists():
        return
    content = file.read_bytes()
    try:
        before = json.loads(content)
    except ValueError:
        before = None
    if not isinstance(before, dict) or not {"scope", "weights"} <= set(before):
        problem = f"{file} does not say which method the checkpoints have ({content!r:.100})"
        raise OptionsError(problem, fix="restore or remove it")
    before.setdefault("settings", {})  # a file of a weighting that has none may lack them
    for name in NAMES:
        now = getattr(options, name)
        if before[name] != now:
            raise OptionsError(
                f"{folder} has checkpoints that were trained with {name}={before[name]!r}, and this run has "
                f"{name}={now!r}",
                fix=f"use {name}={before[name]!r}, train in another folder, or resume a copy of the checkpoint",
            )


def write_method(folder: Path, options: Options, logger: logging.Logger) -> None:
    """Write down what the checkpoints in ``folder`` are trained with. An error is logged, and training continues."""
    try:
        write_whole(folder / FILE, json.dumps({name: getattr(options, name) for name in NAMES}))
    except OSError as error:
        problem = f"cw_grpo: {folder / FILE} cannot be written, so that a resumed run is not checked: {error}"
        logger.error(problem)  # noqa: TRY400 - a traceback would say no more
