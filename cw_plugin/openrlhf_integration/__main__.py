"""``python -m cw_plugin.openrlhf_integration``."""

from cw_plugin.openrlhf_integration.program import main

main()
