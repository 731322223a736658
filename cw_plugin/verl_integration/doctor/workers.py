"""The checks of other processes: whether a fresh Python and the workers of Ray find the method in verl."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from cw_plugin.errors import how_to_install
from cw_plugin.verl_integration.accepted_settings import uses_v1
from cw_plugin.verl_integration.finding import Finding
from cw_plugin.verl_integration.ray_address import find_cluster, require_listener

_PROBE = """
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
get_adv_estimator_fn("cw_grpo"), get_policy_loss_fn("cw_grpo")
from cw_plugin.verl_integration.hooks import require_hooks
from omegaconf import OmegaConf
require_hooks(OmegaConf.create({"trainer": {"use_v1": %s}}))
"""


def _judge(where: str, result: subprocess.CompletedProcess[str]) -> Iterator[Finding]:
    if result.returncode:
        said = "".join(result.stderr.strip().splitlines()[-1:])
        fix = f"{how_to_install()}, there, beside verl; unset VERL_USE_EXTERNAL_PLUGINS; restart a running cluster"
        yield Finding(f"{where} finds no cw_grpo that fits its verl ({said})", fix)


def fresh_interpreter(config: Any) -> Iterator[Finding]:
    """What ``python -m verl.trainer.main_ppo`` would find."""
    command = [sys.executable, "-c", _PROBE % uses_v1(config)]
    yield from _judge(f"a fresh {sys.executable}", subprocess.run(command, capture_output=True, text=True, cwd="/"))


def ray_cluster(config: Any) -> Iterator[Finding]:
    """The cluster that main_ppo would join must answer; Ray itself waits for minutes."""
    address, source = find_cluster(config) or ("", "")
    try:
        require_listener(address)
    except OSError:
        what = f"{source} names a Ray cluster, {address}, which does not answer: main_ppo would wait for minutes"
        yield Finding(what, "++ray_kwargs.ray_init.address=local, for a new Ray; or start the cluster again")


def ray_workers(config: Any) -> Iterator[Finding]:
    """Run the probe in a worker on each node, of the cluster that main_ppo would join, or of a new one."""
    if list(ray_cluster(config)):
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    command = ["-c", _PROBE % uses_v1(config)]

    @ray.remote(num_cpus=0)
    def probe() -> Any:  # sent by value: a worker without this package could import no function of it
        return subprocess.run([sys.executable, *command], capture_output=True, text=True)

    address, _ = find_cluster(config) or ("local", "")
    with ray.init(address=address, log_to_driver=False, logging_level="ERROR"):
        for node in filter(lambda node: node["Alive"], ray.nodes()):
            there = probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            yield from _judge(f"a Ray worker on {node['NodeManagerAddress']}", ray.get(there.remote()))
