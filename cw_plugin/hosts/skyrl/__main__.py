"""``python -m cw_plugin.hosts.skyrl PROGRAM ...``."""

import sys

from cw_plugin.hosts.skyrl.program import MAIN_BASE, start

if len(sys.argv) < 2 or "=" in sys.argv[1] or sys.argv[1].startswith("-"):
    sys.exit(f"cw_grpo: name the program first: python -m cw_plugin.hosts.skyrl {MAIN_BASE} ...")
start(sys.argv.pop(1))
