"""What is refused before training: settings that would undo the weights, and TRL versions without what they need."""

from __future__ import annotations

import inspect
from typing import Any

import trl
from trl import GRPOTrainer

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.trl_integration.config import option

TESTED = ("0.29.0", "1.16.0")  # the oldest, which pyproject.toml also names, and the newest

# The methods of GRPOTrainer that CWGRPOTrainer extends or calls, and the parameters it passes.
NEEDED = {
    "_generate_and_score_completions": ("inputs",),
    "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
    "_calculate_rewards": (),
    "_compute_loss": ("inputs",),
}
# What must stand in a method. _compute_loss tells one advantage per response from one per token: without it, (B, T)
# advantages would broadcast to (B, B, T), and silently train on the weights of other responses. Packages that patch TRL
# for speed (Unsloth) replace compute_loss, with another layout of the tokens.
WRITTEN = {
    "_compute_loss": ("if advantages.dim() == 1:", "(B, T) advantages"),
    "compute_loss": ("self._compute_loss(", "call of _compute_loss"),
}


def check_trl(trainer: type = GRPOTrainer) -> None:
    """Raise HostError if TRL's GRPOTrainer lacks what the weights need."""
    lacking = []
    for name, parameters in NEEDED.items():
        method = getattr(trainer, name, None)
        if method is None:
            lacking.append(name)
        elif missing := [one for one in parameters if one not in inspect.signature(method).parameters]:
            lacking.append(f"{name}({', '.join(missing)})")
    for name, (text, what) in WRITTEN.items() if not lacking else ():
        if text not in inspect.getsource(getattr(trainer, name)):
            lacking.append(f"{what} in {name}")
    if lacking:
        patched = "" if trainer.__module__.startswith("trl.") else f", as {trainer.__module__} has changed it,"
        raise HostError(
            f"GRPOTrainer of TRL {trl.__version__}{patched} has no {', no '.join(lacking)}, so CW-GRPO would not train "
            f"as it should; use TRL as it was released, in a version that cw_plugin was tested with, "
            f"{' to '.join(TESTED)}"
        )


def check_settings(args: Any, trainer: type = GRPOTrainer) -> None:
    """Raise OptionsError if the loss would not keep the weights. ``cw_kernel="none"`` has no weights to keep.

    Args:
        args: a GRPOConfig, or None for TRL's defaults.
    """
    if args is None or option(args, "cw_kernel") == "none":
        return
    if args.importance_sampling_level != "token":
        raise OptionsError(
            f"importance_sampling_level={args.importance_sampling_level!r} averages the weights of a response away: "
            "it has one ratio for all tokens, so that each of them gets the mean weight; set "
            "importance_sampling_level='token'"
        )
    if args.use_liger_kernel and hasattr(trainer, "compute_liger_loss"):
        raise OptionsError(
            f"use_liger_kernel=True selects Liger's GRPO loss in TRL {trl.__version__}, which takes one advantage for "
            "a whole response; set use_liger_kernel=False"
        )
