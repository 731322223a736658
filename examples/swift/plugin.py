"""Makes ms-swift's GRPO train CW-GRPO:  swift rlhf --rlhf_type grpo --external_plugins examples/swift/plugin.py ...

CW_GRPO_KERNEL=none gives plain GRPO with the same metrics; cw_plugin/swift_integration.py has what is refused.
"""

from swift.trainers import TrainerFactory

TrainerFactory.TRAINER_MAPPING["grpo"] = "cw_plugin.swift_integration.CWGRPOTrainer"
