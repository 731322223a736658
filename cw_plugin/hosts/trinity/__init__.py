"""CW-GRPO for Trinity-RFT: an advantage function, which the user's configuration names.

Trinity's code runs unchanged::

    algorithm:
      algorithm_type: grpo
      advantage_fn: cw_plugin.hosts.trinity.CWGRPOAdvantage

README.md has the options, and what the method cannot see there. needs.py lists what the method needs from Trinity.
"""

from cw_plugin.hosts.host import TRINITY

try:
    from cw_plugin.hosts.trinity.advantage import CWGRPOAdvantage, CWStepWiseGRPOAdvantage
except ImportError as error:
    raise TRINITY.misfit(str(error)) from error

__all__ = ["CWGRPOAdvantage", "CWStepWiseGRPOAdvantage"]
