"""The options, ``+algorithm.cw_grpo.<key>=<value>``, and the settings that lose the weights, or make them all 1."""

from collections.abc import Mapping
from dataclasses import fields

from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import OptionsError
from cw_plugin.hosts.verl import NAME
from cw_plugin.options import Options

ACTOR = "actor_rollout_ref.actor"
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"
BYPASS = "algorithm.rollout_correction.bypass_mode"
RESPONSES = "actor_rollout_ref.rollout.n"
TASK_REWARDS = "distillation.distillation_loss.use_task_rewards"

# verl's estimators whose number for a response depends on the rewards of its prompt's responses alone, so that weights
# may multiply it; those that give all tokens of a response the same advantage; and those that do if the reward is of
# the whole response, as it is without a KL penalty.
WEIGHTED = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "gpg")
ONE_FOR_A_RESPONSE = (*WEIGHTED, "gdpo", "opo", "reinforce_plus_plus_baseline")
ONE_WITHOUT_KL = ("remax", "reinforce_plus_plus")

# verl's ``algorithm`` configuration: a DictConfig, or a dataclass of verl's that is a mapping too.
AlgorithmConfig = Mapping[str, object]


def read_options(algorithm: AlgorithmConfig | None) -> Options:
    """The options in verl's ``algorithm`` configuration, from its mapping ``cw_grpo``; the defaults if it has none.

    Raises:
        OptionsError: a key or value is unknown; the message lists the valid ones.
    """
    settings = algorithm.get(NAME) if algorithm is not None else None
    if settings is None:
        return Options()
    if not isinstance(settings, Mapping):
        keys = ", ".join(f"+algorithm.{NAME}.{field.name}=..." for field in fields(Options))
        raise OptionsError(f"algorithm.{NAME}={settings!r} must hold keys", fix=f"set them one by one: {keys}")
    try:
        return Options.of({name: value for name, value in settings.items() if name != "estimator"})
    except OptionsError as error:
        raise OptionsError(f"algorithm.{NAME}: {error.problem}", error.fix) from error


def weighted_estimator(algorithm: AlgorithmConfig | None) -> str:
    """Whose advantages are weighted: verl's estimator in ``algorithm.cw_grpo.estimator``, "grpo" if none is named.

    Raises:
        OptionsError: its advantages cannot be weighted.
    """
    settings = algorithm.get(NAME) if algorithm is not None else None
    estimator = settings.get("estimator", "grpo") if isinstance(settings, Mapping) else "grpo"
    if estimator not in WEIGHTED:
        raise OptionsError(
            f"algorithm.{NAME}.estimator={estimator} does not give each response one advantage that depends on rewards "
            "alone, but needs lengths, values or more, or is not known",
            fix=f"use one of {', '.join(WEIGHTED)}",
        )
    return str(estimator)


def uses_estimator(config: DictConfig) -> bool:
    """Whether verl's configuration names cw_grpo as the advantage estimator."""
    return bool(OmegaConf.select(config, "algorithm.adv_estimator") == NAME)


def uses_loss(config: DictConfig) -> bool:
    """Whether verl's configuration names cw_grpo as the policy loss."""
    return bool(OmegaConf.select(config, LOSS_MODE) == NAME)


def uses_v1(config: DictConfig) -> bool:
    """Whether verl's configuration asks for the V1 trainer; a version without V1 does not know the key."""
    return bool(OmegaConf.select(config, "trainer.use_v1")) and not uses_separate(config)


def uses_separate(config: DictConfig) -> bool:
    """Whether it is one of one_step_off_policy or fully_async_policy, which do not look at trainer.use_v1."""
    return config.get("rollout") is not None  # which is no key of main_ppo


def check_config(config: DictConfig) -> None:
    """Refuse settings that would train something other than intended, before any worker starts.

    Args:
        config: verl's whole configuration.

    Raises:
        OptionsError: the settings cannot work; the message has the override to set.
    """
    options = read_options(OmegaConf.select(config, "algorithm"))
    weighted_estimator(OmegaConf.select(config, "algorithm"))
    _check_options_take_effect(config)
    if uses_estimator(config):
        _check_estimator(config, options)
    if uses_loss(config):
        _check_loss(config)
    if uses_estimator(config) or uses_loss(config):
        _check_advantages_are_used(config)


def _check_options_take_effect(config: DictConfig) -> None:
    if uses_estimator(config) or OmegaConf.select(config, f"algorithm.{NAME}") is None:
        return
    if uses_loss(config):
        instead, fix = f"policy_loss.loss_mode={NAME}", f"algorithm.adv_estimator={NAME} and loss_mode=vanilla"
    else:
        instead = f"adv_estimator={OmegaConf.select(config, 'algorithm.adv_estimator')}"
        fix = f"algorithm.adv_estimator={NAME}"
    raise OptionsError(
        f"algorithm.{NAME}.* are options of the estimator and do nothing for {instead}",
        fix=f"remove them, or set {fix}",
    )


def _check_estimator(config: DictConfig, options: Options) -> None:
    if uses_loss(config):
        raise OptionsError(
            f"algorithm.adv_estimator={NAME} and policy_loss.loss_mode={NAME} together would reweight every token "
            "twice",
            fix=f"set {LOSS_MODE}=vanilla (weights by prompt group, the paper's method) or "
            "algorithm.adv_estimator=grpo (weights by micro-batch, from the current policy)",
        )
    if OmegaConf.select(config, LOSS_MODE) == "geo_mean" and options.weights != "none":
        raise OptionsError(
            "policy_loss.loss_mode=geo_mean averages the advantages of a response, so the loss would lose the weights",
            fix=f"set {LOSS_MODE}=vanilla, or another with one advantage for each token",
        )
    if OmegaConf.select(config, BYPASS):
        options.refuse_without_entropies(f"verl with {BYPASS}=True", fix="set it to False")
    check_groups(config, options)


def check_groups(config: DictConfig, options: Options) -> None:
    """Refuse prompt groups of one response with the estimator (OptionsError)."""
    is_alone = OmegaConf.select(config, RESPONSES) == 1 and options.scope == "group" and _is_training(config)
    if is_alone and options.load_weighting().needs_several_responses:  # which imports torch, so it is asked last
        raise OptionsError(
            f"{RESPONSES}=1 leaves one response in a prompt group, and weights={options.weights} would mean nothing, "
            "because they compare several",
            fix=f"set {RESPONSES}=12, or +algorithm.{NAME}.scope=batch",
        )


def _check_loss(config: DictConfig) -> None:
    if not uses_v1(config) and OmegaConf.select(config, BYPASS):
        raise OptionsError(
            f"rollout_correction.bypass_mode=True makes this trainer replace policy_loss.loss_mode={NAME} by a loss of "
            "its own",
            fix=f"set algorithm.rollout_correction.bypass_mode=False, or use adv_estimator={NAME}",
        )
    size = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    is_one_response = OmegaConf.select(config, size) == 1 and not OmegaConf.select(config, f"{ACTOR}.use_dynamic_bsz")
    if is_one_response and _is_one_for_a_response(config) and _is_training(config):
        raise OptionsError(
            f"{size}=1 gives the tokens of a micro-batch the same advantage, so that policy_loss.loss_mode={NAME} "
            "finds every covariance 0 and every weight 1",
            fix=f"set it to 2 or more, or algorithm.adv_estimator={NAME} with {LOSS_MODE}=vanilla",
        )


def _is_training(config: DictConfig) -> bool:
    return not OmegaConf.select(config, "trainer.val_only")


def _is_one_for_a_response(config: DictConfig) -> bool:
    """Whether all tokens of a response have the same advantage."""
    algorithm = config.algorithm
    if algorithm.adv_estimator in ONE_WITHOUT_KL:
        return bool(algorithm.gamma == 1 and not algorithm.use_kl_in_reward)
    return algorithm.adv_estimator in ONE_FOR_A_RESPONSE


def _check_advantages_are_used(config: DictConfig) -> None:
    distils = OmegaConf.select(config, "distillation.enabled")
    if distils and not OmegaConf.select(config, TASK_REWARDS, default=True):
        raise OptionsError(
            f"{TASK_REWARDS}=False trains on the teacher alone, without advantages, so {NAME} would do nothing",
            fix="set it to True, or leave out cw_grpo",
        )
