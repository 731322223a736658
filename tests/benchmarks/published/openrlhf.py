"""OpenRLHF's commands: its program starts, up to Ray, as published and with the line changed."""

from typing import Any

import torch  # noqa: F401  (loaded once, before programs start in copies of this process)
import transformers  # noqa: F401
import vllm  # noqa: F401
from captured_commands import Command

from published import Outcome, Verdict
from published.programs import program_of, reached, start, verdict

SCRIPTS = ("examples/**/*.sh",)
PROGRAM = "openrlhf.cli.train_ppo_ray"


def judge(command: Command) -> Verdict | None:
    """None for a command that does not train with prompt groups."""
    program, arguments = program_of(command) or ("", [])
    if program != PROGRAM:
        return None
    plain = start(command, PROGRAM, arguments, _refused)
    if plain.ended:
        return Verdict(Outcome.BROKEN, plain.ended)
    if "has no prompt groups" in plain.found["refused"]:
        return None
    return verdict(start(command, "cw_plugin.hosts.openrlhf", arguments, _refused))


def _refused() -> dict[str, Any]:
    """What the package says to the arguments of a started program; it asks after Ray has started."""
    from cw_plugin.errors import OptionsError
    from cw_plugin.hosts.openrlhf.refused_settings import check
    from cw_plugin.options import Options

    try:
        if "args" in reached:  # else it ended before
            check(reached["args"], Options.from_environment())
    except OptionsError as error:
        return {"refused": str(error)}
    return {"refused": ""}
