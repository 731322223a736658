"""What the plugin calls, extends or wraps in ms-swift."""

from cw_plugin.hosts.host import Need

_MODULE = "swift.rlhf_trainers"

NEEDS = (
    Need(_MODULE, "GRPOTrainer._postprocess_batch", ("samples", "batch_encoded_inputs")),
    Need(_MODULE, "GRPOTrainer._get_per_token_logps_and_entropies", ("model", "compute_entropy")),
)
