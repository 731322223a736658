"""What a script of examples/ would run, as it prints it with DRY_RUN=1."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cw_plugin.errors import OptionsError


def dry_run(script: Path, arguments: Sequence[str]) -> str:
    """What a script prints with DRY_RUN=1.

    Raises:
        OptionsError: there is no such script, it would train, or it refuses the arguments; the message is one sentence.
    """
    if not script.is_file():
        raise OptionsError(f"{script} does not exist", fix="give a script or hydra overrides")
    if "DRY_RUN" not in script.read_text(encoding="utf-8", errors="replace"):
        raise OptionsError(
            f"{script} does not support DRY_RUN=1, and would train",
            fix="give verl's overrides, or a script that starts verl",
        )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path, "DRY_RUN": "1"}
    command = ["bash", str(script), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"it ended with exit code {result.returncode}"]
        raise OptionsError(f"{script}: {lines[-1].removeprefix('Error: ')}")
    return result.stdout


def is_of_verl(printed: str) -> bool:
    """Whether a script has printed the configuration of verl."""
    return "algorithm:" in printed.splitlines()
