"""The newest release of each host that pip's package index has, beside the newest that the tests run.

pip hides releases that ask for another Python: on 3.11, SkyRL 0.4.0 stayed unseen for eight weeks. So this passes
--ignore-requires-python. Which index is asked is pip's own configuration::

    python .github/newest_releases.py

It exits with 1 if a host has a newer release.
"""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from cw_plugin.hosts import host

# Axolotl's trainers derive from TRL's (examples/axolotl), and agent-lightning's from verl's.
BESIDES = {"axolotl": "0.21.0", "agentlightning": host.AGENT_LIGHTNING, "tinker-cookbook": host.TINKER_COOKBOOK}


def newest(package: str) -> str:
    """The newest release that the index has, for any Python."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--ignore-requires-python", package]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.search(r"Available versions: ([^,\s]+)", printed)[1]


def main() -> None:
    known = {one.package: one.newest for one in vars(host).values() if isinstance(one, host.Host)}
    changed = []
    for package, tested in (known | BESIDES).items():
        found = newest(package)
        if found != tested:
            changed.append(package)
        print(f"{package:16} {found:10} {'' if found == tested else f'the tests run {tested}'}")
    sys.exit(1 if changed else 0)


if __name__ == "__main__":
    main()
