"""The checks of other processes: whether a fresh Python and the workers of Ray find the method in verl."""

import subprocess
import sys
from collections.abc import Iterator

from omegaconf import DictConfig

from cw_plugin.errors import how_to_install
from cw_plugin.hosts.verl.refused_settings import uses_loss, uses_v1
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.doctor.ray_address import find_cluster, require_listener

_PROBE = """
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
%s("cw_grpo")
from cw_plugin.hosts.verl.hooks import require_hooks
from omegaconf import OmegaConf
require_hooks(OmegaConf.create({"trainer": {"use_v1": %s}}))
"""


def _probe(config: DictConfig) -> str:
    """A program that fails if it does not find what a run uses."""
    wanted = "get_policy_loss_fn" if uses_loss(config) else "get_adv_estimator_fn"
    return _PROBE % (wanted, uses_v1(config))


def _judge(place: str, result: subprocess.CompletedProcess[str]) -> Iterator[Finding]:
    """A finding if the probe has failed in a place."""
    if result.returncode:
        last_line = "".join(result.stderr.strip().splitlines()[-1:])
        fix = f"{how_to_install()}, there, beside verl; unset VERL_USE_EXTERNAL_PLUGINS; restart a running cluster"
        yield Finding(f"{place} finds no cw_grpo that fits its verl ({last_line})", fix)


def check_fresh_interpreter(config: DictConfig) -> Iterator[Finding]:
    """Whether ``python -m verl.trainer.main_ppo`` would find the method."""
    command = [sys.executable, "-c", _probe(config)]
    yield from _judge(f"a fresh {sys.executable}", subprocess.run(command, capture_output=True, text=True, cwd="/"))


def check_ray_cluster(config: DictConfig) -> Iterator[Finding]:
    """Whether the cluster that main_ppo would join answers; Ray itself waits for minutes."""
    cluster = find_cluster(config)
    if cluster is None:
        return
    try:
        require_listener(cluster.address)
    except OSError:
        problem = (
            f"{cluster.source} names a Ray cluster, {cluster.address}, which does not answer: main_ppo would wait for "
            "minutes"
        )
        yield Finding(problem, "++ray_kwargs.ray_init.address=local, for a new Ray; or start the cluster again")


def check_ray_workers(config: DictConfig) -> Iterator[Finding]:
    """Whether a worker on each node finds the method, in the cluster that main_ppo would join, or in a new one."""
    if list(check_ray_cluster(config)):
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    command = ["-c", _probe(config)]

    # Sent by value: a worker without this package could import no function of it.
    def probe() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *command], capture_output=True, text=True)

    cluster = find_cluster(config)
    address = "local" if cluster is None else cluster.address
    with ray.init(address=address, log_to_driver=False, logging_level="ERROR"):
        for node in ray.nodes():
            if node["Alive"]:
                on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                result = ray.remote(num_cpus=0, scheduling_strategy=on_node)(probe).remote()
                yield from _judge(f"a Ray worker on {node['NodeManagerAddress']}", ray.get(result))
