"""``python -m cw_plugin.hosts.skyrl PROGRAM``: a program that trains with SkyRL, with the hook in Ray's workers."""

import importlib.util
import runpy
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import wrapt

from cw_plugin.errors import CWGRPOError
from cw_plugin.hosts.host import SKYRL
from cw_plugin.hosts.ray_workers import reach_workers
from cw_plugin.hosts.skyrl.hook import install
from cw_plugin.hosts.skyrl.refused_settings import check

if TYPE_CHECKING:
    from skyrl.train.config import SkyRLTrainConfig

MAIN_BASE = "skyrl.train.entrypoints.main_base"
OVERRIDE = "trainer.override_entrypoint="  # of MAIN_BASE, which calls the main() of the first module that it names


def start(program: str) -> None:
    """Run a module as the main program, with this process's arguments; Ray's workers, where it trains, get the method.

    A command that it does not train ends with one sentence.
    """
    sys.argv = [argument for argument in sys.argv if argument != f"{OVERRIDE}{__package__}"]  # which asks for this
    for argument in sys.argv[1:]:
        if argument.startswith(OVERRIDE):
            other = argument.removeprefix(OVERRIDE)
            sys.exit(
                f"cw_grpo: {argument} names another program than {program}, and one alone can run; remove it, or "
                f"start python -m cw_plugin.hosts.skyrl {other}"
            )
    package = importlib.util.find_spec("skyrl")
    if package is None or package.origin is None:  # None as well for a folder of this name without code
        sys.exit(f"cw_grpo: {sys.executable} has no skyrl; install skyrl {SKYRL.tested}")
    if not _is_there(program):
        sys.exit(f"cw_grpo: there is no module {program}; start the command in the folder that python -m finds it from")

    @wrapt.patch_function_wrapper("skyrl.train.config", "SkyRLTrainConfig.from_cli_overrides")
    def with_checks(
        of_skyrl: Callable[..., "SkyRLTrainConfig"], _: object, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> "SkyRLTrainConfig":
        cfg = of_skyrl(*args, **kwargs)
        check(cfg)
        return cfg

    install()  # a program may train without Ray's workers
    reach_workers(install)
    try:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    except CWGRPOError as error:
        sys.exit(f"cw_grpo: {error}")


def main() -> None:
    """Train with SkyRL's own program, which calls this for ``trainer.override_entrypoint=cw_plugin.hosts.skyrl``."""
    start(MAIN_BASE)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package that it is in
        return False
