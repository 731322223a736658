"""The memory and disk that a run needs, calculated before it takes a GPU: ``cw-grpo memory``.

The modules of this folder know no framework's code. trl.py and openrlhf.py read what the recipes of examples/ print
with DRY_RUN=1. What verl needs is calculated in cw_plugin/lab/doctor/memory.
"""
