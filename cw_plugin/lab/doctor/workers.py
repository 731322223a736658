"""The checks of Ray: whether its cluster answers, and its workers find the method in verl."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import CWGRPOError
from cw_plugin.hosts.verl import NAME
from cw_plugin.hosts.verl.refused_settings import uses_loss
from cw_plugin.lab.doctor.environment import last_line
from cw_plugin.lab.doctor.finding import Finding, said
from cw_plugin.lab.errors import how_to_install


def probe_of(config: DictConfig) -> str:
    """A program that fails where :func:`require_method` does."""
    return (
        "from omegaconf import OmegaConf\n"
        "from cw_plugin.lab.doctor.workers import require_method\n"
        f"require_method(OmegaConf.create({OmegaConf.to_yaml(config)!r}))\n"
    )


def require_method(config: DictConfig) -> None:
    """Raise an error if verl, in this process, does not find what a run uses."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    from cw_plugin.hosts.verl.hooks import require_hooks

    (get_policy_loss_fn if uses_loss(config) else get_adv_estimator_fn)(NAME)
    require_hooks(config)


def find_cluster(config: DictConfig) -> str | None:
    """The address of the cluster that ``main_ppo`` would join, by Ray's rules; None if it starts its own Ray."""
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address")
    if address in (None, "auto"):
        # Where `ray start` notes the head's address, which only `ray stop` removes.
        note = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")
        noted = note.read_text(encoding="utf-8").strip() if note.exists() else None
        address = os.environ.get("RAY_ADDRESS") or noted or address
    return None if address == "local" else address


def require_listener(address: str) -> None:
    """Connect once to ``host:port``, with or without ``ray://``. Other addresses, such as "auto", are ignored.

    Raises:
        OSError: nothing listens there. Ray itself would wait for minutes, and then end the process.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()  # [::1] of IPv6


def check_ray_cluster(config: DictConfig) -> Iterator[Finding]:
    """Whether the cluster that main_ppo would join answers; Ray itself waits for minutes."""
    address = find_cluster(config)
    if address is None:
        return
    try:
        require_listener(address)
    except OSError:
        problem = f"the Ray cluster that this run would join, {address}, does not answer"
        yield Finding(problem, "++ray_kwargs.ray_init.address=local, for a new Ray; or start the cluster again")


def check_ray_workers(config: DictConfig) -> Iterator[Finding]:
    """Whether a worker on each node of the cluster that main_ppo would join finds the method.

    The workers of a new Ray have this process' machine and environment, so this process answers for them.
    """
    if list(check_ray_cluster(config)):
        return
    address = find_cluster(config)
    fix = f"{how_to_install()}, there, beside verl; unset VERL_USE_EXTERNAL_PLUGINS; restart a running cluster"
    if address is None:
        try:
            require_method(config)
        except (ValueError, CWGRPOError) as error:
            yield Finding(f"verl finds no cw_grpo here that fits it ({said(error)})", fix)
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    program = probe_of(config)

    # Sent by value: a worker without this package could import no function of it.
    def probe() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable], input=program, capture_output=True, text=True)

    with ray.init(address=address, log_to_driver=False, logging_level="ERROR"):
        for node in ray.nodes():
            if node["Alive"]:
                on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                result = ray.get(ray.remote(num_cpus=0, scheduling_strategy=on_node)(probe).remote())
                if result.returncode:
                    place = f"a Ray worker on {node['NodeManagerAddress']}"
                    yield Finding(f"{place} finds no cw_grpo that fits its verl ({last_line(result)})", fix)
