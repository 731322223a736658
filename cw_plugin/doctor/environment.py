"""Whether verl finds this package: in a fresh interpreter, and in Ray's workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import how_to_install
from cw_plugin.verl_integration.options import estimator_and_loss, uses_v1
from cw_plugin.verl_integration.ray_cluster import find_cluster, require_listener

_PROBE = """
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
get_adv_estimator_fn("cw_grpo"), get_policy_loss_fn("cw_grpo")
from cw_plugin.verl_integration.hooks import require_hooks
from omegaconf import OmegaConf
require_hooks(OmegaConf.create({"trainer": {"use_v1": %s}}))
"""


def trainer_and_hooks(config: Any) -> str:
    """Which trainer of verl a run uses, and which functions of verl this package hooks for it."""
    trainer = "V1 trainer" if uses_v1(config) else "legacy trainer, RayPPOTrainer"
    if not any(estimator_and_loss(config)):
        return f"verl's {trainer}; this run does not use cw_grpo, so no hook acts"
    from cw_plugin.verl_integration.hooks import hooks_of

    return f"verl's {trainer}; cw_plugin hooks {', '.join(hook.function for hook in hooks_of(config))}"


def _judge(where: str, exit_code: int, stderr: str) -> Iterator[Finding]:
    if exit_code:
        said = (stderr.strip().splitlines() or ["it ended without output"])[-1]
        fix = (
            f"{how_to_install()}, there, beside verl; leave VERL_USE_EXTERNAL_PLUGINS unset; restart a running cluster"
        )
        yield Finding(f"{where} finds no cw_grpo that fits its verl ({said})", fix)


def fresh_interpreter(config: Any) -> Iterator[Finding]:
    """What ``python -m verl.trainer.main_ppo`` would find."""
    command = [sys.executable, "-c", _PROBE % uses_v1(config)]
    result = subprocess.run(command, capture_output=True, text=True, cwd="/")
    yield from _judge(f"a fresh {sys.executable}", result.returncode, result.stderr)


def ray_cluster(config: Any) -> Iterator[Finding]:
    """The cluster that main_ppo would join must answer; Ray itself waits for minutes."""
    address, source = find_cluster(config) or ("", "")
    try:
        require_listener(address)
    except OSError:
        what = f"{source} names a Ray cluster, {address}, and nobody answers there: main_ppo would wait for minutes"
        fix = "++ray_kwargs.ray_init.address=local, for a Ray of the run's own; or start the cluster again"
        yield Finding(what, fix)


def ray_workers(config: Any) -> Iterator[Finding]:
    """Run the probe in a worker on each node, of the cluster that main_ppo would join, or of a new one."""
    if list(ray_cluster(config)):
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.is_initialized()
    if not here:
        address, _ = find_cluster(config) or ("local", "")
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    code = _PROBE % uses_v1(config)

    @ray.remote(num_cpus=0)
    def probe() -> tuple[int, str]:  # sent by value: a worker without this package could import no function of it
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        return result.returncode, result.stderr

    try:
        for node in ray.nodes():
            if node["Alive"]:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                answer = ray.get(probe.options(scheduling_strategy=strategy).remote())
                yield from _judge(f"a Ray worker on {node['NodeManagerAddress']}", *answer)
    finally:
        if not here:
            ray.shutdown()
