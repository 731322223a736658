"""Checks of the settings that need no file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import OptionsError, first_line, how_to_install
from cw_plugin.verl_integration import NAME
from cw_plugin.verl_integration.config import compose, leaves
from cw_plugin.verl_integration.options import check_config, estimator_and_loss

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"

# Numbers by default that verl also accepts as text ("0.5_2.0").
TEXT_TOO = ("algorithm.rollout_correction.rollout_is_threshold",)

# The settings that the checks calculate with: whole numbers >= 1.
COUNTS = (
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    f"{ACTOR}.ppo_mini_batch_size",
    f"{ROLLOUT}.n",
    f"{ROLLOUT}.tensor_model_parallel_size",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
)


def values(config: Any) -> Iterator[Finding]:
    """Values of another type than verl's default: text for a number or boolean, any value for a group of settings."""
    given = leaves(config)
    engine = config.get("model_engine")
    default = leaves(compose([f"model_engine={engine}"] if engine else []), resolve=False)  # "${...}" is judged there
    for key, usual in default.items():
        if key not in given:
            prefix = next((part for part in _parents(key) if part in given), None)
            if prefix and given[prefix] not in (None, {}):
                yield Finding(
                    "values",
                    f"{prefix}={given[prefix]} replaces a group of settings",
                    f"verl reads settings in it, such as {key}",
                    f"leave {prefix} out, and set {prefix}.KEY=VALUE",
                )
                return
            continue
        value = given[key]
        if isinstance(usual, (bool, int, float)) and isinstance(value, (str, list, dict)) and key not in TEXT_TOO:
            kind, why = ("True or False", "verl would read any text as True")
            if not isinstance(usual, bool):
                kind, why = ("a number", "verl calculates with it")
            yield Finding("values", f"{key}={value} is not {kind}", why, f"{key}={usual}, the default")
        elif key in COUNTS and not (type(value) is int and value > 0):
            yield Finding(
                "values", f"{key}={value} is not a whole number from 1", "verl counts with it",
                f"{key}={usual}, the default",
            )  # fmt: skip


def _parents(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def method(config: Any) -> Iterator[Finding]:
    """Combinations of estimator, loss and options that the plugin itself refuses."""
    try:
        check_config(config)
    except OptionsError as error:
        from cw_plugin.verl_integration.hooks import verl_has_its_own  # imports verl, which takes seconds

        if not verl_has_its_own():
            what, _, fix = str(error).partition("; ")
            yield Finding("method", what, "main_ppo refuses to start", fix)
    unknown = list(_unknown_names(config))
    yield from unknown
    if not unknown and not any(estimator_and_loss(config)):
        yield Finding(
            "method",
            f"neither algorithm.adv_estimator={config.algorithm.adv_estimator} nor the loss is {NAME}",
            "this run is not CW-GRPO",
            f"algorithm.adv_estimator={NAME}",
            fatal=False,
        )


def _unknown_names(config: Any) -> Iterator[Finding]:
    for key, name, usual in (
        ("algorithm.adv_estimator", config.algorithm.adv_estimator, (NAME, "grpo")),
        (f"{ACTOR}.policy_loss.loss_mode", config.actor_rollout_ref.actor.policy_loss.get("loss_mode"),
         ("vanilla", NAME, "clip_cov")),
    ):  # fmt: skip
        if name in usual:
            continue  # importing verl to look the name up takes seconds
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

        known = [str(name) for name in (POLICY_LOSS_REGISTRY if "loss" in key else ADV_ESTIMATOR_REGISTRY)]
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.8)
            yield Finding(
                "method",
                f"{key}={name} is a name that verl does not know",
                "main_ppo looks it up after the first rollouts, and stops",
                f"{key}={(near or usual)[0]}, or another of {', '.join(known)}; if a module of yours registers {name}, "
                "name that module in VERL_USE_EXTERNAL_MODULES",
            )


def rollout_engine(config: Any) -> str | None:
    """vllm, sglang, ..., or None where it is not set."""
    from omegaconf import OmegaConf

    rollout = config.actor_rollout_ref.rollout
    return None if OmegaConf.is_missing(rollout, "name") else rollout.name


def rollout(config: Any) -> Iterator[Finding]:
    """The rollout engine must be set, because verl has no default."""
    if rollout_engine(config) is None:
        yield Finding(
            "rollout", f"{ROLLOUT}.name is not set", "verl has no default inference engine", f"{ROLLOUT}.name=vllm"
        )  # fmt: skip


def scope(config: Any) -> Iterator[Finding]:
    """Whether the advantages of tokens that share statistics can differ."""
    estimator, loss = estimator_and_loss(config)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    options = config.algorithm.get(NAME) or {}
    by_batch = estimator and getattr(options, "get", lambda *_: None)("scope") == "batch"
    if estimator and rollout.n < 2 and not by_batch:
        yield Finding(
            "scope",
            f"rollout.n={rollout.n}: a prompt group of one response",
            "its advantages are all alike, so that every covariance is 0 and every weight 1",
            "actor_rollout_ref.rollout.n=12, or +algorithm.cw_grpo.scope=batch",
        )
    if by_batch:
        yield Finding(
            "scope",
            "scope=batch: the tokens of all prompts share means, sigma and normalisation",
            "in the paper, the tokens of one prompt group share them",
            f"algorithm.{NAME}.scope=group",
            fatal=False,
        )
    if loss and not actor.use_dynamic_bsz and actor.ppo_micro_batch_size_per_gpu == 1:
        yield Finding(
            "scope",
            "loss_mode=cw_grpo on micro-batches of one response",
            "its advantages are all alike, so that every covariance is 0 and every weight 1: plain GRPO",
            f"algorithm.adv_estimator={NAME} with {ACTOR}.policy_loss.loss_mode=vanilla, or "
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
        )


def batch_sizes(config: Any) -> Iterator[Finding]:
    """Prompts, responses, mini-batches and data-parallel ranks."""
    actor, rollout, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.trainer
    prompts, mini, n = config.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n
    gpus = trainer.nnodes * trainer.n_gpus_per_node
    parallel = sequence_parallel(actor)
    if actor.strategy == "megatron":
        parallel *= actor.megatron.tensor_model_parallel_size * actor.megatron.pipeline_model_parallel_size
    if gpus % parallel:
        yield Finding(
            "batch sizes",
            f"{gpus} GPUs cannot be divided into model replicas of {parallel}",
            "the actor would not start",
            f"trainer.n_gpus_per_node={parallel}, or another parallel size of the actor",
        )
    elif ranks := gpus // parallel:
        fitting = next(size for size in range(mini, mini + ranks) if size * n % ranks == 0)
        filled = -(-prompts // fitting) * fitting
        fix = f"data.train_batch_size={filled} {ACTOR}.ppo_mini_batch_size={fitting}"
        if fitting != mini:
            yield Finding(
                "batch sizes",
                f"a mini-batch of {mini} prompts x {n} responses cannot be divided by {ranks} data-parallel ranks",
                "verl stops at the first update",
                fix,
            )
        elif prompts % mini:
            yield Finding(
                "batch sizes",
                f"train_batch_size={prompts} is not a multiple of ppo_mini_batch_size={mini} (both count prompts)",
                f"verl pads each batch to {filled} prompts with empty responses and makes {filled // mini} updates; "
                "where loss_agg_mode is a mean over responses, it counts the empty ones",
                fix,
                fatal=False,
            )
    servers = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    if gpus % servers and config.actor_rollout_ref.hybrid_engine:
        yield Finding(
            "batch sizes",
            f"{gpus} GPUs cannot be divided into rollout servers of {servers}",
            "the rollout would not start",
            f"{ROLLOUT}.tensor_model_parallel_size=1",
        )


def sequence_parallel(actor: Any) -> int:
    """GPUs that share the tokens of one sequence."""
    if actor.strategy == "megatron":
        return actor.megatron.context_parallel_size
    places = (actor, actor.get("fsdp_config") or {})  # the actor's own key is deprecated, and wins
    return max(place.get("ulysses_sequence_parallel_size", 1) for place in places)


def aggregation(config: Any) -> Iterator[Finding]:
    """The paper's objective averages over the tokens of a response, then over responses."""
    mode = config.actor_rollout_ref.actor.loss_agg_mode
    if mode != "seq-mean-token-mean":
        yield Finding(
            "loss_agg_mode",
            f"loss_agg_mode={mode}",
            "the paper's objective is the mean over a response's tokens, then over responses",
            f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",
            fatal=False,
        )


def reward_function(config: Any) -> Iterator[Finding]:
    """Whether the reward function can be loaded, and is not set at the top level, which verl's trainer ignores."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    try:
        get_custom_reward_fn(config)
    except Exception as error:  # whatever the user's module raises
        yield Finding(
            "reward",
            f"reward.custom_reward_function.path={config.reward.custom_reward_function.path} cannot be loaded "
            f"({first_line(error)})",
            "the reward workers would stop at the first batch",
            f"if it is this package's: {how_to_install('data')}; else a path and a name that exist",
        )
    legacy = config.get("custom_reward_function") or {}
    if legacy.get("path"):
        yield Finding(
            "reward",
            f"custom_reward_function.path={legacy.get('path')} stands at the top level",
            "verl's main_ppo silently ignores it, and uses its own scoring function",
            f"reward.custom_reward_function.path={legacy.get('path')} "
            f"reward.custom_reward_function.name={legacy.get('name') or 'compute_score'}",
        )


def verls_own_checks(config: Any) -> Iterator[Finding]:
    """``verl.utils.config.validate_config``, which main_ppo calls."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    except OptionsError:
        return  # reported by method()
    except Exception as error:  # assertions, ValueErrors and hydra's instantiation errors
        yield Finding(
            "verl",
            f"verl refuses these settings: {' '.join(str(error).split())}",
            "main_ppo would not start",
            "change the setting that verl names",
        )
