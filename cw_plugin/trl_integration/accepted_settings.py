"""What is refused before training: a TRL without what the weights need, and settings that lose the weights."""

import inspect
from typing import Any

import trl
from trl import GRPOTrainer

from cw_plugin.errors import HostError, OptionsError

TESTED = ("0.29.0", "1.16.0")  # the oldest, which pyproject.toml also names, and the newest

# The methods of GRPOTrainer that CWGRPOTrainer extends or calls, with the parameters it passes, and a line that must
# stand in them. _compute_loss tells one advantage per response from one per token; without that line, (B, T) advantages
# would broadcast to (B, B, T), and train on the weights of other responses. Packages that patch TRL for speed (Unsloth)
# replace compute_loss, and lay the tokens out in another way.
NEEDED: dict[str, tuple[tuple[str, ...], str]] = {
    "_generate_and_score_completions": (("inputs",), ""),
    "_get_per_token_logps_and_entropies": (
        ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"), ""
    ),
    "_calculate_rewards": ((), ""),
    "_compute_loss": (("inputs",), "if advantages.dim() == 1:"),
    "compute_loss": ((), "self._compute_loss("),
}  # fmt: skip


def check_trl(trainer: type = GRPOTrainer) -> None:
    """Raise HostError if TRL's GRPOTrainer lacks what the weights need."""
    lacking = []
    for name, (parameters, line) in NEEDED.items():
        method = getattr(trainer, name, None)
        if method is None:
            lacking.append(name)
        elif missing := [one for one in parameters if one not in inspect.signature(method).parameters]:
            lacking.append(f"{name}({', '.join(missing)})")
        elif line not in inspect.getsource(method):
            lacking.append(f"`{line}` in {name}")
    if lacking:
        patched = "" if trainer.__module__.startswith("trl.") else f", as {trainer.__module__} has changed it,"
        raise HostError(
            f"GRPOTrainer of TRL {trl.__version__}{patched} has no {', no '.join(lacking)}, so it would not train "
            f"on the weights; use an unchanged TRL from {TESTED[0]} to {TESTED[1]}"
        )


def check_settings(args: Any, trainer: type = GRPOTrainer) -> None:
    """Raise OptionsError if the loss of a GRPOConfig would not keep the weights."""
    if args.importance_sampling_level != "token":
        raise OptionsError(
            f"importance_sampling_level={args.importance_sampling_level!r} has one ratio for a whole response, which "
            "gives each of its tokens their mean weight; set importance_sampling_level='token'"
        )
    if args.use_liger_kernel and hasattr(trainer, "compute_liger_loss"):
        raise OptionsError(
            f"use_liger_kernel=True selects Liger's loss in TRL {trl.__version__}, which takes one advantage for a "
            "whole response; set use_liger_kernel=False"
        )


def check_advantages(advantages: Any) -> None:
    """Raise HostError if TRL's advantages are not one for each response."""
    if advantages.dim() != 1:
        raise HostError(
            f"the advantages have the shape {tuple(advantages.shape)}, and CW-GRPO reweights one for each response: "
            "something else has changed GRPOTrainer._generate_and_score_completions, so remove that"
        )
