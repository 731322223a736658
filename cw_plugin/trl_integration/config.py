"""The options of CW-GRPO beside TRL's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from trl import GRPOConfig

from cw_plugin.errors import OptionsError
from cw_plugin.weights import Kernel

Scope = Literal["group", "batch"]


@dataclass
class CWGRPOConfig(GRPOConfig):
    """TRL's GRPOConfig, and four options that start with ``cw_``. The method itself has no hyperparameter.

    Attributes:
        cw_scope: which tokens share means, sigma and normalisation: those of one prompt ("group", as in the paper), or
            of the whole generation batch ("batch").
        cw_kernel: "gaussian", or "none" for plain GRPO with the same metrics and records.
        cw_record_every: steps between two records of the covariance distribution, 0 for none. They are written to
            ``output_dir/covariance``; ``cw-grpo covariance`` reads them.
        cw_record_tokens: how many of the most extreme tokens a record lists, with their text, for each sign.

    Raises:
        OptionsError: an unknown value; the message lists the valid ones.
    """

    cw_scope: Scope = field(default="group", metadata={"help": "Tokens that share statistics: group or batch."})
    cw_kernel: Kernel = field(default="gaussian", metadata={"help": "gaussian, or none for plain GRPO."})
    cw_record_every: int = field(default=50, metadata={"help": "Steps between covariance records, 0 for none."})
    cw_record_tokens: int = field(default=0, metadata={"help": "Most extreme tokens a record lists, of either side."})

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, valid in (("cw_scope", Scope), ("cw_kernel", Kernel)):
            if getattr(self, name) not in get_args(valid):
                raise OptionsError(f"{name} must be one of {', '.join(get_args(valid))}, got {getattr(self, name)!r}")
        for name in ("cw_record_every", "cw_record_tokens"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise OptionsError(f"{name} must be a whole number >= 0, got {getattr(self, name)!r}")


def option(args: Any, name: str) -> Any:
    """The value of an option; its default if ``args`` is a plain GRPOConfig, or None."""
    return getattr(args, name, getattr(CWGRPOConfig, name))
