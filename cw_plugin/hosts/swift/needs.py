"""What the plugin calls, extends or wraps in ms-swift.

What changes most often from release to release: ``_postprocess_batch``, the losses in grpo_trainer.py, and its pin of
TRL.
"""

from cw_plugin.hosts.host import Need

_MODULE = "swift.rlhf_trainers"

NEEDS = (
    Need(_MODULE, "GRPOTrainer._postprocess_batch", ("samples", "batch_encoded_inputs")),
    Need(_MODULE, "GRPOTrainer._get_per_token_logps_and_entropies", ("model", "compute_entropy")),
)
