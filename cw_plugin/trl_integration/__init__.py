"""CW-GRPO for TRL: :class:`CWGRPOTrainer` and :class:`CWGRPOConfig` in place of TRL's GRPOTrainer and GRPOConfig.

The one place that touches TRL. TRL's own code is called, not copied; what it must offer is listed in checks.py.
"""

from cw_plugin.trl_integration.config import CWGRPOConfig
from cw_plugin.trl_integration.trainer import CWGRPOTrainer

__all__ = ["CWGRPOConfig", "CWGRPOTrainer"]
