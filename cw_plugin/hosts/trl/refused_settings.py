"""What is refused: a release of TRL without what the weights need, and settings that lose the weights."""

import trl
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.hosts.host import TRL, Need


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
    """Raise OptionsError if the loss of a GRPOConfig would not keep the weights."""
    # CISPO's ratio has no gradient, and multiplies each token's own log-prob.
    if args.importance_sampling_level != "token" and args.loss_type != "cispo":
        raise OptionsError(
            f"importance_sampling_level={args.importance_sampling_level!r} has one ratio for a whole response, which "
            "gives each of its tokens their mean weight",
            fix="set importance_sampling_level='token'",
        )
    if args.use_liger_kernel and hasattr(trainer, "compute_liger_loss"):
        raise OptionsError(
            f"use_liger_kernel=True selects Liger's loss in TRL {trl.__version__}, which takes one advantage for a "
            "whole response",
            fix="set use_liger_kernel=False",
        )


def check_advantages(advantages: Tensor) -> None:
    """Raise HostError if TRL's advantages are not one for each response."""
    if advantages.dim() != 1:
        raise HostError(
            f"the advantages have the shape {tuple(advantages.shape)}, and CW-GRPO reweights one for each response: "
            "something else has changed GRPOTrainer._generate_and_score_completions, so remove that"
        )
