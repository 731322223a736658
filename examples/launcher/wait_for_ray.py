"""Wait until a Ray cluster has as many nodes as it should: python wait_for_ray.py HOST:PORT NODES [SECONDS]

verl does not wait: it refuses to start if GPUs are missing.
"""

from __future__ import annotations

import sys
import time

import ray

from cw_plugin.verl_integration.ray_cluster import require_listener


def alive(address: str) -> int:
    """How many nodes there are; 0 while nobody answers."""
    try:
        require_listener(address)  # ray.init would wait for minutes, and end this process
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except OSError:  # ConnectionError is one
        return 0
    return sum(node["Alive"] for node in ray.nodes())


def main(address: str, nodes: str, seconds: str = "600") -> None:
    deadline = time.monotonic() + float(seconds)
    while (found := alive(address)) < int(nodes):
        if time.monotonic() > deadline:
            sys.exit(f"After {seconds} seconds {found} of {nodes} nodes are in the Ray cluster at {address}.")
        time.sleep(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
