"""train_ppo_ray with the method and a witness in Ray's workers: what the maker computed, and what reached the loss.

OpenRLHF's program runs unchanged, with its own arguments; files go to the folder PROBE.
"""

import runpy
from types import ModuleType
from typing import Any

import wrapt

from cw_plugin.hosts.openrlhf import hook


def install() -> None:
    hook.install()
    wrapt.register_post_import_hook(_watch_maker, hook.MAKER)
    wrapt.register_post_import_hook(_watch_loss, "openrlhf.models.loss")


def _watch_maker(module: ModuleType) -> None:
    @wrapt.patch_function_wrapper(module.RemoteExperienceMaker, "compute_advantages_and_returns")
    def watched(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        from probe_files import save

        made = wrapped(*args, **kwargs)
        names = {"log_probs": "action_log_probs", "advantages": "advantages", "mask": "action_mask"}
        rows = [
            {"prompt": e.prompts[i], "reward": float(e.rewards[i])}
            | {name: getattr(e, field)[i].clone() for name, field in names.items()}
            for e in made
            for i in range(len(e.prompts))
        ]
        save("maker", rows)
        return made


def _watch_loss(module: ModuleType) -> None:
    @wrapt.patch_function_wrapper(module.PolicyLoss, "forward")
    def watched(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        from probe_files import save

        _, old, advantages = args[:3]
        mask = kwargs["action_mask"]
        rows = zip(old, advantages, mask, strict=True)
        save("loss", [{"log_probs": x.clone(), "advantages": a.clone(), "mask": m.clone()} for x, a, m in rows])
        return wrapped(*args, **kwargs)


if __name__ == "__main__":
    import ray

    ray.init(runtime_env={"worker_process_setup_hook": "openrlhf_probe.install"})
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
