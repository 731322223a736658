"""CW-GRPO for ms-swift: :class:`CWGRPOTrainer` in place of its GRPOTrainer. An external plugin registers it.

A plugin cannot add flags to ms-swift's command line, so the options are environment variables: ``CW_GRPO_SCOPE``,
``CW_GRPO_WEIGHTS`` and ``CW_GRPO_RECORD_EVERY`` (:class:`cw_plugin.options.Options`). Records go to output_dir/tokens.
"""

from cw_plugin.hosts.swift.trainer import CWGRPOTrainer

__all__ = ["CWGRPOTrainer"]
