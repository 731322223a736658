"""Wait until a Ray cluster has as many nodes as it should: python wait_for_ray.py HOST:PORT NODES [SECONDS]

verl does not wait: it refuses to start if GPUs are missing.
"""

import sys
import time

import ray

from cw_plugin.lab.doctor.workers import require_listener

if not 3 <= len(sys.argv) <= 4:
    sys.exit(__doc__)
address = sys.argv[1]
wanted = int(sys.argv[2])
seconds = float(sys.argv[3]) if len(sys.argv) == 4 else 600


def alive_nodes() -> int:
    """How many nodes the cluster has now; 0 if it does not answer yet."""
    try:
        require_listener(address)  # ray.init would wait for minutes, and end this process
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        return len([node for node in ray.nodes() if node["Alive"]])
    except OSError:  # ConnectionError is one
        return 0


deadline = time.monotonic() + seconds
alive = alive_nodes()
while alive < wanted:
    if time.monotonic() > deadline:
        sys.exit(
            f"After {seconds:g} seconds {alive} of {wanted} nodes are in the Ray cluster at {address}; start Ray on "
            "the others."
        )
    time.sleep(2)
    alive = alive_nodes()
