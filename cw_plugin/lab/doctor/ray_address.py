"""The Ray cluster that verl's ``ray.init`` would join."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SETTING = "ray_kwargs.ray_init.address"


@dataclass(frozen=True)
class Cluster:
    """The address of a Ray cluster, and the setting, variable or file that names it."""

    address: str
    source: str


def remembered() -> Path:
    """The file where ``ray start`` writes the head's address. Only ``ray stop`` removes it, so it may be outdated."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")


def find_cluster(config: "DictConfig") -> Cluster | None:
    """The cluster that ``main_ppo`` would join, looked up in Ray's order; None if it starts its own Ray."""
    from omegaconf import OmegaConf

    address, source = OmegaConf.select(config, _SETTING), _SETTING
    if address in (None, "auto") and os.environ.get("RAY_ADDRESS"):
        address, source = os.environ["RAY_ADDRESS"], "RAY_ADDRESS"
    if address in (None, "auto") and remembered().exists():
        address, source = remembered().read_text(encoding="utf-8").strip(), str(remembered())
    if address in (None, "local"):
        return None
    return Cluster(address, source)


def require_listener(address: str, seconds: float = 5) -> None:
    """Connect once to ``host:port``, with or without ``ray://``. Other addresses, such as "auto", are ignored.

    Raises:
        OSError: nothing listens there. Ray itself would wait for minutes, and then end the process.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()  # [::1] of IPv6
