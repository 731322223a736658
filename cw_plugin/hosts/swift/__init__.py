"""CW-GRPO for ms-swift: :class:`CWGRPOTrainer` in place of its GRPOTrainer. An external plugin registers it.

A plugin cannot add flags to ms-swift's command line, so the options are environment variables
(:mod:`cw_plugin.options`). Records go to output_dir/tokens.
"""

from cw_plugin.hosts.swift.trainer import CWGRPOTrainer

__all__ = ["CWGRPOTrainer"]
