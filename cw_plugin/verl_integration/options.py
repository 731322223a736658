"""The options, ``+algorithm.cw_grpo.<key>=<value>``, and the combinations of settings that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

from cw_plugin.errors import OptionsError
from cw_plugin.verl_integration import NAME

if TYPE_CHECKING:
    from cw_plugin.weights import Kernel  # loads torch, which the check before every training avoids

Scope = Literal["group", "batch"]


@dataclass(frozen=True)
class Options:
    """The method has no hyperparameter. These options set what the statistics run over, and what is recorded.

    Attributes:
        scope: which tokens share means, sigma and normalisation: those of one prompt ("group", as in the paper), or
            of the whole training batch ("batch").
        kernel: "gaussian", or "none" for plain GRPO with the same statistics recorded.
        record_every: steps between two records of a step's tokens, 0 for none (recording.py).
        entropy_low, entropy_high: in nats. The log warns if the policy entropy is outside. None means no bound.
    """

    scope: Scope = "group"
    kernel: Kernel = "gaussian"
    record_every: int = 50
    entropy_low: float | None = None
    entropy_high: float | None = None

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
        for key, value in given.items():
            if key not in _VALID:
                raise OptionsError(f"algorithm.{NAME}.{key} is unknown; the keys are {', '.join(_VALID)}")
            described, valid = _VALID[key]
            if not valid(value):
                raise OptionsError(f"algorithm.{NAME}.{key}={value} is unknown; use {described}")
        options = cls(**given)
        if None not in (low := options.entropy_low, high := options.entropy_high) and not low < high:  # type: ignore[operator]
            raise OptionsError(f"algorithm.{NAME}.entropy_low={low} must be less than entropy_high={high}; swap them")
        return options

    def is_due(self, step: int | None) -> bool:
        """Whether to record ``step``: step 1 and every ``record_every``-th. False outside a trainer."""
        return step is not None and step > 0 < self.record_every and (step == 1 or step % self.record_every == 0)


def _one_of(values: tuple[str, ...]) -> tuple[str, Any]:
    return f"one of {', '.join(values)}", lambda value: value in values


_COUNT = ("a whole number from 0", lambda value: type(value) is int and value >= 0)
_BOUND = ("a number of nats, or null", lambda value: value is None or (isinstance(value, Real) and value == value))

# For each option: its valid values in words, and a function that checks a value.
_VALID: dict[str, tuple[str, Any]] = {
    "scope": _one_of(get_args(Scope)),
    "kernel": _one_of(("gaussian", "none")),
    "record_every": _COUNT,
    "entropy_low": _BOUND,
    "entropy_high": _BOUND,
}


def estimator_and_loss(config: Any) -> tuple[bool, bool]:
    """Which of the two verl's configuration sets to cw_grpo."""
    estimator = _get(config, "algorithm.adv_estimator")
    return estimator == NAME, _get(config, "actor_rollout_ref.actor.policy_loss.loss_mode") == NAME


def _get(config: Any, key: str) -> Any:
    """The value of a dotted key; None where a recipe's own configuration does not have it."""
    for part in key.split("."):
        config = None if config is None else config.get(part)
    return config


def uses_v1(config: Any) -> bool:
    """Whether verl's configuration asks for the V1 trainer; a verl that has none does not know the key."""
    return bool(_get(config, "trainer.use_v1"))


def check_config(config: Any) -> None:
    """Before any worker starts, refuse settings that would train something other than intended.

    Args:
        config: verl's whole configuration.

    Raises:
        OptionsError: the message has the override that fixes it.
    """
    options = Options.from_config(_get(config, "algorithm"))
    estimator, loss = estimator_and_loss(config)
    if estimator and loss:
        raise OptionsError(
            f"algorithm.adv_estimator={NAME} and policy_loss.loss_mode={NAME} together would weigh every token twice; "
            "set actor_rollout_ref.actor.policy_loss.loss_mode=vanilla (weights by prompt group, the paper's method) "
            "or algorithm.adv_estimator=grpo (weights by micro-batch, from the current policy)"
        )
    if not estimator and _get(config, f"algorithm.{NAME}") is not None:
        given = _get(config, "algorithm.adv_estimator")
        without = f"policy_loss.loss_mode={NAME}" if loss else f"adv_estimator={given}"
        raise OptionsError(
            f"algorithm.{NAME}.* are options of the estimator and do nothing for {without}; remove them, or set "
            f"algorithm.adv_estimator={NAME}" + (" and loss_mode=vanilla" if loss else "")
        )
    if loss and not uses_v1(config) and bypasses_old_log_probs(config):
        raise OptionsError(
            f"rollout_correction.bypass_mode=True makes RayPPOTrainer replace policy_loss.loss_mode={NAME} by a loss "
            f"of its own; set algorithm.rollout_correction.bypass_mode=False, or use adv_estimator={NAME}"
        )
    averages = _get(config, "actor_rollout_ref.actor.policy_loss.loss_mode") == "geo_mean"
    if estimator and averages and options.kernel != "none":
        raise OptionsError(
            "policy_loss.loss_mode=geo_mean averages the advantages of a response, so the loss would lose the weights; "
            "set actor_rollout_ref.actor.policy_loss.loss_mode=vanilla, or another with one advantage for each token"
        )
    # main_ppo's configuration does not have these keys.
    if (estimator or loss) and (config.get("rollout") is not None or config.get("async_training") is not None):
        raise OptionsError(
            f"{NAME} has not been tested with one_step_off_policy and fully_async_policy, and is refused there; start "
            "verl.trainer.main_ppo, for asynchronous training with trainer.v1.trainer_mode=separate_async"
        )


def bypasses_old_log_probs(config: Any) -> bool:
    """Whether verl uses the rollouts' log-probs as the old policy's, and so computes no entropy before the update."""
    return bool(_get(config, "algorithm.rollout_correction.bypass_mode"))
