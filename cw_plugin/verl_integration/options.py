"""The options, ``+algorithm.cw_grpo.<key>=<value>``, and the combinations of settings that cannot work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, get_args

from cw_plugin.errors import OptionsError
from cw_plugin.verl_integration import NAME

if TYPE_CHECKING:
    from cw_plugin.weights import Kernel  # loads torch, which the check before every training does without

Scope = Literal["group", "batch"]


@dataclass(frozen=True)
class Options:
    """The method itself has no hyperparameter; these choose what is measured over what, and what is recorded.

    Attributes:
        scope: tokens that share means, sigma and normalisation: those of one prompt ("group", as in the paper), or
            of the whole training batch ("batch").
        kernel: "gaussian", or "none" for plain GRPO with the same statistics recorded.
        record_every: steps between two records of the covariance distribution, 0 for none (recording.py).
        record_tokens: how many of the most extreme tokens of either side a record lists, with their text.
        entropy_low, entropy_high: a policy entropy outside is warned of in the log, in nats; None for no bound.
    """

    scope: Scope = "group"
    kernel: Kernel = "gaussian"
    record_every: int = 50
    record_tokens: int = 0
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
            raise OptionsError(
                f"algorithm.{NAME}.entropy_low={low} must be less than entropy_high={high}; exchange them"
            )
        return options


def _one_of(values: tuple[str, ...]) -> tuple[str, Any]:
    return f"one of {', '.join(values)}", lambda value: value in values


_COUNT = ("a whole number from 0", lambda value: type(value) is int and value >= 0)
_BOUND = ("a number of nats, or null", lambda value: value is None or (isinstance(value, Real) and value == value))

# Of each option: its values in words, and whether a value is one of them.
_VALID: dict[str, tuple[str, Any]] = {
    "scope": _one_of(get_args(Scope)),
    "kernel": _one_of(("gaussian", "none")),
    "record_every": _COUNT,
    "record_tokens": _COUNT,
    "entropy_low": _BOUND,
    "entropy_high": _BOUND,
}


def verl_has_its_own() -> bool:
    """Whether the cw_grpo that verl will run is not this package's, whose options and checks then do not apply."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY

    from cw_plugin.verl_integration.estimator import compute_cw_grpo_advantage

    return ADV_ESTIMATOR_REGISTRY.get(NAME, compute_cw_grpo_advantage) is not compute_cw_grpo_advantage


def check_config(config: Any) -> None:
    """Refuse, before any worker starts, settings that would train something else than was asked for.

    Args:
        config: verl's whole configuration.

    Raises:
        OptionsError: with the override that fixes it.
    """
    try:
        _check(config)
    except OptionsError:
        if not verl_has_its_own():  # asked last: it imports verl, which takes seconds
            raise


def _check(config: Any) -> None:
    Options.from_config(config.algorithm)
    estimator = config.algorithm.adv_estimator == NAME
    loss = config.actor_rollout_ref.actor.policy_loss.get("loss_mode") == NAME
    if estimator and loss:
        raise OptionsError(
            f"algorithm.adv_estimator={NAME} and policy_loss.loss_mode={NAME} together would weigh every token twice; "
            "set actor_rollout_ref.actor.policy_loss.loss_mode=vanilla (weights by prompt group, the paper's method) "
            "or algorithm.adv_estimator=grpo (weights by micro-batch, from the current policy)"
        )
    if not estimator and config.algorithm.get(NAME) is not None:
        without = f"policy_loss.loss_mode={NAME}" if loss else f"adv_estimator={config.algorithm.adv_estimator}"
        raise OptionsError(
            f"algorithm.{NAME}.* are options of the estimator and do nothing for {without}; remove them, or set "
            f"algorithm.adv_estimator={NAME}" + (" and loss_mode=vanilla" if loss else "")
        )
    if (estimator or loss) and not config.trainer.get("use_v1", True):
        raise OptionsError(
            f"{NAME} needs verl's V1 trainer: the deprecated one passes an estimator no log-probs, has no place for "
            "the metrics, and may replace the loss (rollout_correction.bypass_mode); set trainer.use_v1=True"
        )
    if (estimator or loss) and config.get("rollout") is not None:  # a key that main_ppo's configuration does not have
        raise OptionsError(
            f"{NAME} needs verl's V1 trainer, and one_step_off_policy and fully_async_policy have the deprecated one; "
            "start verl.trainer.main_ppo, for asynchronous training with trainer.v1.trainer_mode=separate_async"
        )
