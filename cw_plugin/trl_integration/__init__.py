"""CW-GRPO for TRL: :class:`CWGRPOTrainer` and :class:`CWGRPOConfig` in place of TRL's GRPOTrainer and GRPOConfig.

Only this folder touches TRL. It calls TRL's own code and copies none; checks.py lists what it needs from TRL.
"""

from cw_plugin.trl_integration.config import CWGRPOConfig
from cw_plugin.trl_integration.trainer import CWGRPOTrainer

__all__ = ["CWGRPOConfig", "CWGRPOTrainer"]
