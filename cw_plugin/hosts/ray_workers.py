"""What OpenRLHF's and SkyRL's programs share: they train in Ray's workers, which the method has to reach."""

import functools
import os
from collections.abc import Callable
from typing import Any

import wrapt

from cw_plugin.errors import HostError
from cw_plugin.options import variables


def reach_workers(hook: "functools._lru_cache_wrapper[None]") -> None:
    """Let ``ray.init``, which a program will call, run a hook in each of Ray's workers, with this process's options.

    It then raises a HostError if a worker did not run the hook.

    Args:
        hook: puts the method into a process; a function that Ray's workers can import, with functools.cache, which
            knows if it has run.
    """
    import ray

    def has_run(hook: "functools._lru_cache_wrapper[None]") -> bool:
        return hook.cache_info().currsize > 0

    @wrapt.patch_function_wrapper(ray, "init")
    def with_hook(of_ray: Callable[..., object], _: object, args: tuple[object, ...], kwargs: dict[str, Any]) -> object:
        name = f"{hook.__module__}.{hook.__wrapped__.__name__}"
        environment = dict(kwargs.pop("runtime_env", None) or {})
        environment["worker_process_setup_hook"] = name
        environment["env_vars"] = environment.get("env_vars", {}) | variables()
        # A job may name the options, or the hook, too. Without this variable, Ray refuses anything that is named twice.
        os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
        context = of_ray(*args, runtime_env=environment, **kwargs)
        if not ray.get(ray.remote(num_cpus=0)(has_run).remote(hook)):
            raise HostError(
                f"Ray's workers did not run {name}, so they would train plain GRPO",
                fix="install cw_plugin on every node",
            )
        return context
