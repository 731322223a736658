"""``python -m cw_plugin.hosts.openrlhf``."""

from cw_plugin.hosts.openrlhf.program import main

main()
