"""CW-GRPO for TRL: :class:`CWGRPOTrainer` and :class:`CWGRPOConfig` in place of TRL's GRPOTrainer and GRPOConfig.

It calls TRL's own code and copies none; needs.py lists what it needs.
"""

from cw_plugin.hosts.trl.config import CWGRPOConfig
from cw_plugin.hosts.trl.trainer import CWGRPOTrainer

__all__ = ["CWGRPOConfig", "CWGRPOTrainer"]
