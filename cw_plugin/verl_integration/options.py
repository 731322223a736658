"""The options, ``+algorithm.cw_grpo.<key>=<value>``, and the combinations of settings that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_type_hints

from cw_plugin.errors import OptionsError
from cw_plugin.verl_integration import NAME
from cw_plugin.weights import Kernel

Scope = Literal["group", "batch"]


@dataclass(frozen=True)
class Options:
    """The method itself has no hyperparameter; these choose what is measured over what.

    Attributes:
        scope: tokens that share means, sigma and normalisation: those of one prompt ("group", as in the paper), or
            of the whole training batch ("batch").
        kernel: "gaussian", or "none" for plain GRPO with the same statistics recorded.
    """

    scope: Scope = "group"
    kernel: Kernel = "gaussian"

    @classmethod
    def from_config(cls, algorithm: Any) -> Options:
        """Read ``algorithm.cw_grpo`` (a mapping, or absent).

        Raises:
            OptionsError: an unknown key or value; the message lists the valid ones.
        """
        given = algorithm.get(NAME) if algorithm is not None else None
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            keys = ", ".join(f"+algorithm.{NAME}.{field.name}=..." for field in fields(cls))
            raise OptionsError(f"algorithm.{NAME}={given!r} must hold keys; set them one by one: {keys}")
        valid = {field.name: get_args(get_type_hints(cls)[field.name]) for field in fields(cls)}
        for key, value in given.items():
            if key not in valid:
                raise OptionsError(f"algorithm.{NAME}.{key} is unknown; the keys are {', '.join(valid)}")
            if value not in valid[key]:
                raise OptionsError(f"algorithm.{NAME}.{key}={value} is unknown; use one of {', '.join(valid[key])}")
        return cls(**given)


def check_config(config: Any) -> None:
    """Refuse, before any worker starts, settings that would train something else than was asked for.

    Args:
        config: verl's whole configuration.

    Raises:
        OptionsError: with the override that mends it.
    """
    Options.from_config(config.algorithm)
    estimator = config.algorithm.adv_estimator == NAME
    loss = config.actor_rollout_ref.actor.policy_loss.get("loss_mode") == NAME
    if estimator and loss:
        raise OptionsError(
            f"algorithm.adv_estimator={NAME} and policy_loss.loss_mode={NAME} together would weigh every token twice; "
            "set actor_rollout_ref.actor.policy_loss.loss_mode=vanilla (weights by prompt group, the paper's method) "
            "or algorithm.adv_estimator=grpo (weights by micro-batch, from the current policy)"
        )
    if loss and config.algorithm.get(NAME) is not None:
        raise OptionsError(
            f"algorithm.{NAME}.* are options of the estimator and do nothing for policy_loss.loss_mode={NAME}; "
            f"remove them, or set algorithm.adv_estimator={NAME} and loss_mode=vanilla"
        )
    if (estimator or loss) and not config.trainer.get("use_v1", True):
        raise OptionsError(
            f"{NAME} needs verl's V1 trainer: the deprecated one passes an estimator no log-probs, has no place for "
            "the metrics, and may replace the loss (rollout_correction.bypass_mode); set trainer.use_v1=True"
        )
