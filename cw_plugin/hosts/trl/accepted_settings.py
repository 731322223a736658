"""What is refused: a version of TRL without what the weights need, and settings that lose the weights."""

import inspect
from dataclasses import dataclass

import trl
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from cw_plugin.errors import HostError, OptionsError

TESTED = ("0.29.0", "1.16.0")  # the oldest, which pyproject.toml also names, and the newest


@dataclass(frozen=True)
class Needed:
    """A method of GRPOTrainer that CWGRPOTrainer extends or calls.

    Attributes:
        method: its name.
        parameters: those that CWGRPOTrainer passes.
        line: a part of its source, without which it would do something else.
    """

    method: str
    parameters: tuple[str, ...] = ()
    line: str = ""

    def lacks(self, trainer: type) -> str:
        """What a trainer lacks of it, in code; empty if nothing."""
        function = getattr(trainer, self.method, None)
        if function is None:
            return self.method
        known = inspect.signature(function).parameters
        missing = [name for name in self.parameters if name not in known]
        if missing:
            return f"{self.method}({', '.join(missing)})"
        if self.line not in inspect.getsource(function):
            return f"`{self.line}` in {self.method}"
        return ""


# _compute_loss tells one advantage per response from one per token; without that line, (B, T) advantages would
# broadcast to (B, B, T), and train on the weights of other responses. Packages that patch TRL for speed (Unsloth)
# replace compute_loss, and lay the tokens out in another way.
NEEDED = (
    Needed("_generate_and_score_completions", ("inputs",)),
    Needed(
        "_get_per_token_logps_and_entropies",
        ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
    ),
    Needed("_calculate_rewards"),
    Needed("_compute_loss", ("inputs",), line="if advantages.dim() == 1:"),
    Needed("compute_loss", line="self._compute_loss("),
)


def check_trl(trainer: type = GRPOTrainer) -> None:
    """Raise HostError if TRL's GRPOTrainer lacks what the weights need."""
    lacking = [lack for needed in NEEDED if (lack := needed.lacks(trainer))]
    if lacking:
        patched = "" if trainer.__module__.startswith("trl.") else f", as {trainer.__module__} has changed it,"
        raise HostError(
            f"GRPOTrainer of TRL {trl.__version__}{patched} has no {', no '.join(lacking)}, so it would not train "
            "on the weights",
            fix=f"use an unchanged TRL from {TESTED[0]} to {TESTED[1]}",
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
