"""SkyRL's program with the method and two witnesses: what the trainer computed, and what reached each policy worker.

Files go to the folder PROBE.
"""

import functools
from types import ModuleType
from typing import Any

import wrapt


@functools.cache
def install() -> None:
    from cw_plugin.hosts import skyrl

    skyrl.install()
    wrapt.register_post_import_hook(_watch_trainer, "skyrl.train.trainer")
    wrapt.register_post_import_hook(_watch_worker, "skyrl.backends.skyrl_train.workers.worker")


def _save(kind: str, data: Any, **more: list[Any]) -> None:
    from probe_files import save

    names = {"log_probs": "action_log_probs", "advantages": "advantages", "mask": "loss_mask"}
    rows = [
        {name: data[field][i].clone() for name, field in names.items() if field in data}
        | {name: values[i] for name, values in more.items()}
        for i in range(len(data["sequences"]))
    ]
    save(kind, rows)


def _watch_trainer(module: ModuleType) -> None:
    @wrapt.patch_function_wrapper(module.RayPPOTrainer, "fwd_logprobs_values_reward")
    def watched(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        data = wrapped(*args, **kwargs)
        _save("trainer", data, prompt=data.metadata["uids"], reward=data["rewards"].sum(-1).tolist())
        return data


def _watch_worker(module: ModuleType) -> None:
    plain = module.PolicyWorkerBase.forward_backward

    # A plain function: Ray sends an actor's methods to it by value, and of a wrapt proxy only what it wraps.
    @functools.wraps(plain)
    def forward_backward(worker: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        _save("worker", data)
        return plain(worker, data, *args, **kwargs)

    module.PolicyWorkerBase.forward_backward = forward_backward


def main() -> None:
    import skyrl_probe  # since Ray's workers cannot import __main__

    from cw_plugin.hosts.skyrl import program

    program.install = skyrl_probe.install
    program.start("cw_plugin.lab.rewards.skyrl")


if __name__ == "__main__":
    main()
