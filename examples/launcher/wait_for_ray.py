"""Wait until a Ray cluster has as many nodes as it should: python wait_for_ray.py HOST:PORT NODES [SECONDS]

verl does not wait: it refuses to start if GPUs are missing.
"""

import sys
import time

import ray

from cw_plugin.verl_integration.ray_address import require_listener

if not 3 <= len(sys.argv) <= 4:
    sys.exit(__doc__)
address, nodes, seconds = [*sys.argv[1:], "600"][:3]
found, deadline = 0, time.monotonic() + float(seconds)
while found < int(nodes):
    if time.monotonic() > deadline:
        here = f"{found} of {nodes} nodes are in the Ray cluster at {address}"
        sys.exit(f"After {seconds} seconds {here}; start Ray on the others.")
    try:
        require_listener(address)  # ray.init would wait for minutes, and end this process
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        found = sum(node["Alive"] for node in ray.nodes())
    except OSError:  # ConnectionError is one: nobody answers yet
        found = 0
    time.sleep(2 * (found < int(nodes)))
