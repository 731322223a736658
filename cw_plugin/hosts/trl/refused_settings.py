"""What is refused: a release of TRL without what the weights need, and settings that lose the weights."""

from trl import GRPOConfig, GRPOTrainer

from cw_plugin.errors import OptionsError
from cw_plugin.hosts.host import TRL, Need
from cw_plugin.hosts.transformers_trainer import check_loss

# Settings of Axolotl with which another trainer computes advantages, or one that does not work; and what is supported.
OF_AXOLOTL = {"async_prefetch": False, "use_data_producer": False, "context_parallel_size": 1}


def check_trl(trainer: type = GRPOTrainer) -> None:
    """Raise HostError if TRL's GRPOTrainer lacks what the weights need.

    ``_compute_loss`` tells one advantage per response from one per token. Without that line, advantages (B, T) would
    broadcast to (B, B, T), and train on the weights of other responses. Packages that patch TRL for speed (Unsloth)
    replace ``compute_loss``, and lay the tokens out in another way.
    """
    TRL.require(
        Need(trainer, "_generate_and_score_completions", ("inputs",)),
        Need(
            trainer,
            "_get_per_token_logps_and_entropies",
            ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"),
        ),
        Need(trainer, "_calculate_rewards"),
        Need(trainer, "_compute_loss", ("inputs",), line="if advantages.dim() == 1:"),
        Need(trainer, "compute_loss", line="self._compute_loss("),
    )


def check_settings(args: GRPOConfig, trainer: type = GRPOTrainer) -> None:
    """Raise OptionsError if the loss of a GRPOConfig would not keep the weights, or other code computes advantages."""
    check_loss(args, has_ligers_loss=hasattr(trainer, "compute_liger_loss"))
    for name, supported in OF_AXOLOTL.items():
        value = getattr(args, name, None) or supported
        if value != supported:
            raise OptionsError(f"{name}={value!r} is not supported by CW-GRPO", fix=f"set it to {supported!r}")
