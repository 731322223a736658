"""Makes ms-swift's GRPO train CW-GRPO:  swift rlhf --rlhf_type grpo --external_plugins examples/swift/plugin.py ...

`megatron rlhf` is not served. MegatronGRPOTrainer holds advantages and log-probs of whole batches in one method, where
weights could be put in; but it has steps, metrics and checkpoints of its own, and needs a GPU, which the tests lack.
"""

import sys

from swift.trainers import TrainerFactory

from cw_plugin.errors import HostError

if "swift.megatron.arguments" in sys.modules:  # its trainers are not in TrainerFactory, so it would train plain GRPO
    raise HostError("CW-GRPO is not available for `megatron rlhf`; use `swift rlhf`, or verl with Megatron")

TrainerFactory.TRAINER_MAPPING["grpo"] = "cw_plugin.hosts.swift.CWGRPOTrainer"
