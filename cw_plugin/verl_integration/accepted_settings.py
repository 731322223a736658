"""The options, ``+algorithm.cw_grpo.<key>=<value>``, and the combinations of settings that cannot work."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import OmegaConf

from cw_plugin.errors import OptionsError
from cw_plugin.options import Options
from cw_plugin.verl_integration import NAME


def read_options(algorithm: Any) -> Options:
    """Options of verl's ``algorithm`` configuration, from its mapping ``cw_grpo``; the defaults if there is none. An
    unknown key or value is an OptionsError that lists the valid ones."""
    given = algorithm.get(NAME) if algorithm is not None else None
    if given is None:
        return Options()
    if not isinstance(given, Mapping):
        keys = ", ".join(f"+algorithm.{NAME}.{field.name}=..." for field in fields(Options))
        raise OptionsError(f"algorithm.{NAME}={given!r} must hold keys; set them one by one: {keys}")
    try:
        return Options.of(given)
    except OptionsError as error:
        raise OptionsError(f"algorithm.{NAME}: {error}") from error


def estimator_and_loss(config: Any) -> tuple[bool, bool]:
    """Which of the two verl's configuration sets to cw_grpo."""
    estimator = OmegaConf.select(config, "algorithm.adv_estimator")
    return estimator == NAME, OmegaConf.select(config, "actor_rollout_ref.actor.policy_loss.loss_mode") == NAME


def uses_v1(config: Any) -> bool:
    """Whether verl's configuration asks for the V1 trainer; a verl that has none does not know the key."""
    return bool(OmegaConf.select(config, "trainer.use_v1"))


def check_config(config: Any) -> None:
    """Before any worker starts, refuse settings that would train something other than intended, with an OptionsError
    that has the override to set. ``config`` is verl's whole configuration."""
    options = read_options(OmegaConf.select(config, "algorithm"))
    estimator, loss = estimator_and_loss(config)
    if estimator and loss:
        raise OptionsError(
            f"algorithm.adv_estimator={NAME} and policy_loss.loss_mode={NAME} together would reweight every token "
            "twice; set actor_rollout_ref.actor.policy_loss.loss_mode=vanilla (weights by prompt group, the paper's "
            "method) or algorithm.adv_estimator=grpo (weights by micro-batch, from the current policy)"
        )
    if not estimator and OmegaConf.select(config, f"algorithm.{NAME}") is not None:
        given = OmegaConf.select(config, "algorithm.adv_estimator")
        without = f"policy_loss.loss_mode={NAME}" if loss else f"adv_estimator={given}"
        raise OptionsError(
            f"algorithm.{NAME}.* are options of the estimator and do nothing for {without}; remove them, or set "
            f"algorithm.adv_estimator={NAME}" + (" and loss_mode=vanilla" if loss else "")
        )
    if loss and not uses_v1(config) and OmegaConf.select(config, "algorithm.rollout_correction.bypass_mode"):
        raise OptionsError(
            f"rollout_correction.bypass_mode=True makes RayPPOTrainer replace policy_loss.loss_mode={NAME} by a loss "
            f"of its own; set algorithm.rollout_correction.bypass_mode=False, or use adv_estimator={NAME}"
        )
    averages = OmegaConf.select(config, "actor_rollout_ref.actor.policy_loss.loss_mode") == "geo_mean"
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
