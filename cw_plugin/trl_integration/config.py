"""The options of CW-GRPO beside TRL's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trl import GRPOConfig

from cw_plugin.errors import OptionsError

Scope = Literal["group", "batch"]
Kernel = Literal["gaussian", "none"]


@dataclass
class CWGRPOConfig(GRPOConfig):
    """TRL's GRPOConfig, and five options that start with ``cw_``. The method itself has no hyperparameter.

    Attributes:
        cw_scope: which tokens share means, sigma and normalisation: those of one prompt ("group", as in the paper), or
            of the whole generation batch ("batch").
        cw_kernel: "gaussian", or "none" for plain GRPO with the same metrics and records.
        cw_record_every: steps between two records of a step's tokens, 0 for none. They are written to
            ``output_dir/tokens``; ``cw-grpo tokens`` and ``cw-grpo report`` read them. None means 50, and with
            ``push_to_hub`` 0: the Hub gets what is in output_dir, and records hold prompts and responses.
        cw_entropy_low, cw_entropy_high: in nats. The log warns when the policy's entropy leaves these bounds, and says
            what drives it. None means no bound.

    Raises:
        OptionsError: an unknown value; the message lists the valid ones.
    """

    cw_scope: Scope = field(default="group", metadata={"help": "Tokens that share statistics: group or batch."})
    cw_kernel: Kernel = field(default="gaussian", metadata={"help": "gaussian, or none for plain GRPO."})
    cw_record_every: int | None = field(
        default=None, metadata={"help": "Steps between token records, 0 for none; 50, or 0 with push_to_hub."}
    )
    cw_entropy_low: float | None = field(default=None, metadata={"help": "Warn of entropy below it, in nats."})
    cw_entropy_high: float | None = field(default=None, metadata={"help": "Warn of entropy above it, in nats."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, valid in (("cw_scope", Scope), ("cw_kernel", Kernel)):
            if getattr(self, name) not in get_args(valid):
                raise OptionsError(f"{name} must be one of {', '.join(get_args(valid))}, got {getattr(self, name)!r}")
        self.cw_record_every = option(self, "cw_record_every")
        if type(self.cw_record_every) is not int or self.cw_record_every < 0:
            raise OptionsError(f"cw_record_every must be a whole number >= 0, got {self.cw_record_every!r}")
        low, high = self.cw_entropy_low, self.cw_entropy_high
        for name, bound in (("cw_entropy_low", low), ("cw_entropy_high", high)):
            if bound is not None and not (isinstance(bound, (int, float)) and math.isfinite(bound)):
                raise OptionsError(f"{name} must be a number of nats, or None, got {bound!r}")
        if low is not None and high is not None and not low < high:
            raise OptionsError(f"cw_entropy_low={low} must be less than cw_entropy_high={high}")


def option(args: Any, name: str) -> Any:
    """The value of an option; its default if ``args`` is a plain GRPOConfig, or None."""
    value = getattr(args, name, getattr(CWGRPOConfig, name))
    if name == "cw_record_every" and value is None:
        return 0 if args.push_to_hub else 50
    return value
