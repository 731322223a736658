"""``python -m cw_plugin.hosts.openrlhf``: OpenRLHF's program train_ppo_ray, with the hook in Ray's workers."""

import importlib.util
import os
import runpy
import sys
from typing import Any

import wrapt

from cw_plugin.errors import CWGRPOError, HostError
from cw_plugin.hosts.host import OPENRLHF
from cw_plugin.hosts.openrlhf.hook import Args, Kwargs, Wrapped, installed
from cw_plugin.hosts.openrlhf.needs import NEEDS
from cw_plugin.hosts.openrlhf.refused_settings import check
from cw_plugin.method_file import refuse_other_method
from cw_plugin.options import Options, variables

HOOK = "cw_plugin.hosts.openrlhf.install"


def main() -> None:
    """Start openrlhf.cli.train_ppo_ray with this process's arguments, and the method in Ray's workers."""
    if importlib.util.find_spec("openrlhf") is None:
        sys.exit(f"cw_grpo: {sys.executable} has no openrlhf; install openrlhf {OPENRLHF.tested}")
    import ray

    @wrapt.patch_function_wrapper(ray, "init")
    def with_hook(of_ray: Wrapped, _: object, args: Args, kwargs: dict[str, Any]) -> object:
        environment = dict(kwargs.pop("runtime_env", None) or {})
        environment["worker_process_setup_hook"] = HOOK
        environment["env_vars"] = environment.get("env_vars", {}) | variables()
        # A job may name the options, or the hook, too. Without this variable, Ray refuses anything that is named twice.
        os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
        context = of_ray(*args, runtime_env=environment, **kwargs)
        if not ray.get(ray.remote(num_cpus=0)(installed).remote()):
            raise HostError(
                f"Ray's workers did not run {HOOK}, so they would train plain GRPO",
                fix="install cw_plugin on every node",
            )
        return context

    @wrapt.patch_function_wrapper("openrlhf.utils", "get_strategy")
    def with_checks(of_openrlhf: Wrapped, _: object, args: Args, kwargs: Kwargs) -> object:
        strategy = of_openrlhf(*args, **kwargs)
        options = Options.from_environment()
        settings = check(strategy.args, options)
        if settings.has_checkpoint:  # the run would refuse it, too, but in a worker
            refuse_other_method(settings.checkpoints, options)
        return strategy

    try:
        Options.from_environment()
        # The shape of OpenRLHF is checked before Ray starts. This process does not change it, because it sends its
        # classes to Ray's workers.
        OPENRLHF.require(*NEEDS)
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
    except CWGRPOError as error:
        sys.exit(f"cw_grpo: {error}")
