"""CW-GRPO for TRL: :class:`CWGRPOTrainer` in place of ``trl.GRPOTrainer``, :class:`CWGRPOConfig` in place of its config.

The one place that touches TRL. TRL's own code is called, not copied; what it must offer is listed in checks.py.
"""

from cw_plugin.trl_integration.config import CWGRPOConfig
from cw_plugin.trl_integration.trainer import CWGRPOTrainer

__all__ = ["CWGRPOConfig", "CWGRPOTrainer"]
