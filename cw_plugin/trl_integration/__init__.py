"""CW-GRPO for TRL: :class:`CWGRPOTrainer` and :class:`CWGRPOConfig` in place of TRL's GRPOTrainer and GRPOConfig.

Only this folder and cw_plugin/rewards/trl.py touch TRL. They call TRL's own code and copy none; accepted_settings.py
lists what they need from TRL.
"""

from cw_plugin.trl_integration.config import CWGRPOConfig
from cw_plugin.trl_integration.trainer import CWGRPOTrainer

__all__ = ["CWGRPOConfig", "CWGRPOTrainer"]
