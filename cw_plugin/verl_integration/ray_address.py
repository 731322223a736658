"""The Ray cluster that verl's ``ray.init`` would join."""

import os
import socket
from pathlib import Path
from typing import Any


def remembered() -> Path:
    """The file where ``ray start`` writes the head's address. Only ``ray stop`` removes it, so it may be outdated."""
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")


def find_cluster(config: Any) -> tuple[str, str] | None:
    """The address that ``main_ppo`` would join, in Ray's order, and its source; None if it starts its own Ray."""
    from omegaconf import OmegaConf

    address, source = OmegaConf.select(config, "ray_kwargs.ray_init.address"), "ray_kwargs.ray_init.address"
    if address in (None, "auto") and os.environ.get("RAY_ADDRESS"):
        address, source = os.environ["RAY_ADDRESS"], "RAY_ADDRESS"
    if address in (None, "auto") and remembered().exists():
        address, source = remembered().read_text(encoding="utf-8").strip(), str(remembered())
    return None if address in (None, "local") else (address, source)


def require_listener(address: str, seconds: float = 5) -> None:
    """Connect once to ``host:port`` (``ray://`` or not); an OSError if nothing listens there. Ray itself would wait for
    minutes, and then end the process. Other addresses ("auto") are ignored."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=seconds).close()
