"""What is refused: settings that lose the weights."""

from trl import GRPOConfig, GRPOTrainer

from cw_plugin.errors import OptionsError
from cw_plugin.hosts.transformers_trainer import check_loss

# Settings of Axolotl with which another trainer computes advantages, or one that does not work; and what is supported.
OF_AXOLOTL = {"async_prefetch": False, "use_data_producer": False, "context_parallel_size": 1}


def check_settings(args: GRPOConfig, trainer: type = GRPOTrainer) -> None:
    """Raise OptionsError if the loss of a GRPOConfig would not keep the weights, or other code computes advantages."""
    check_loss(args, has_ligers_loss=hasattr(trainer, "compute_liger_loss"))
    for name, supported in OF_AXOLOTL.items():
        value = getattr(args, name, None) or supported
        if value != supported:
            raise OptionsError(f"{name}={value!r} is not supported by CW-GRPO", fix=f"set it to {supported!r}")
