"""``python -m cw_plugin.hosts.trl grpo ...``: TRL's command line, ``trl grpo ...``, which trains CW-GRPO."""

import sys
from argparse import Namespace
from collections.abc import Callable

import wrapt
from accelerate.commands import launch

from cw_plugin.errors import CWGRPOError
from cw_plugin.hosts.host import TRL
from cw_plugin.hosts.trl.grpo import put_in_place_of_trls
from cw_plugin.hosts.trl.needs import COMMAND_LINE


@wrapt.patch_function_wrapper(launch, "launch_command")  # TRL takes it when trl.cli is imported
def with_our_script(of_accelerate: Callable[..., None], _: object, args: tuple[Namespace], kwargs: object) -> None:
    """Let accelerate start cw_plugin/hosts/trl/grpo.py, in as many processes as it would start TRL's script."""
    (settings,) = args
    settings.module, settings.training_script = True, "cw_plugin.hosts.trl.grpo"
    of_accelerate(settings)


def main() -> int:
    """Start the training that this process's arguments describe; TRL's exit status."""
    command = next(iter(sys.argv[1:]), None)
    if command != "grpo":
        given = "no command" if command is None else command
        sys.exit(f"cw_grpo: `trl grpo` alone trains with token weights, and {given} was given; write grpo first")
    try:
        put_in_place_of_trls()  # first, so that TRL's parser knows the options of CWGRPOConfig
        TRL.require(*COMMAND_LINE)
        from trl.cli import main as trl_main

        status: int = trl_main()
    except CWGRPOError as error:
        sys.exit(f"cw_grpo: {error}")
    return status


if __name__ == "__main__":
    sys.exit(main())
