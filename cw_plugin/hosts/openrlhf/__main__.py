"""``python -m cw_plugin.hosts.openrlhf``: OpenRLHF's program train_ppo_ray, with the hook in Ray's workers."""

import importlib.util
import runpy
import sys

import wrapt

from cw_plugin.errors import CWGRPOError
from cw_plugin.hosts.host import OPENRLHF
from cw_plugin.hosts.openrlhf.hook import Args, Kwargs, Wrapped, install
from cw_plugin.hosts.openrlhf.needs import NEEDS
from cw_plugin.hosts.openrlhf.refused_settings import check
from cw_plugin.hosts.ray_workers import reach_workers
from cw_plugin.options import Options


def main() -> None:
    """Start openrlhf.cli.train_ppo_ray with this process's arguments, and the method in Ray's workers."""
    package = importlib.util.find_spec("openrlhf")
    if package is None or package.origin is None:  # None as well for a folder of this name without code
        sys.exit(f"cw_grpo: {sys.executable} has no openrlhf; install openrlhf {OPENRLHF.tested}")
    reach_workers(install)

    @wrapt.patch_function_wrapper("openrlhf.utils", "get_strategy")
    def with_checks(of_openrlhf: Wrapped, _: object, args: Args, kwargs: Kwargs) -> object:
        strategy = of_openrlhf(*args, **kwargs)
        check(strategy.args, Options.from_environment())
        return strategy

    try:
        Options.from_environment()
        # The shape of OpenRLHF is checked before Ray starts. This process does not change it, because it sends its
        # classes to Ray's workers.
        OPENRLHF.require(*NEEDS)
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
    except CWGRPOError as error:
        sys.exit(f"cw_grpo: {error}")


if __name__ == "__main__":
    main()
