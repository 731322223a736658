"""The settings, as far as they can be judged without reading a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import OptionsError, first_line, how_to_install
from cw_plugin.verl_integration import NAME
from cw_plugin.verl_integration.options import check_config

ACTOR = "actor_rollout_ref.actor"


def estimator_and_loss(config: Any) -> tuple[bool, bool]:
    """Which of the two are set to cw_grpo."""
    loss_mode = config.actor_rollout_ref.actor.policy_loss.get("loss_mode")
    return config.algorithm.adv_estimator == NAME, loss_mode == NAME


def method(config: Any) -> Iterator[Finding]:
    """Estimator, loss and options together, as the plugin itself refuses them."""
    try:
        check_config(config)
    except OptionsError as error:
        what, _, mend = str(error).partition("; ")
        yield Finding("method", what, "main_ppo refuses to start", mend)
    unknown = list(_unknown_names(config))
    yield from unknown
    if not unknown and not any(estimator_and_loss(config)):
        yield Finding(
            "method",
            f"adv_estimator={config.algorithm.adv_estimator}, and no loss of the plugin's",
            "this run is not CW-GRPO",
            f"algorithm.adv_estimator={NAME}",
            fatal=False,
        )


def _unknown_names(config: Any) -> Iterator[Finding]:
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    estimator, loss = config.algorithm.adv_estimator, config.actor_rollout_ref.actor.policy_loss.get("loss_mode")
    for key, name, find, use in (
        ("algorithm.adv_estimator", estimator, get_adv_estimator_fn, NAME),
        (f"{ACTOR}.policy_loss.loss_mode", loss, get_policy_loss_fn, "vanilla"),
    ):
        try:
            find(name)
        except ValueError:
            yield Finding(
                "method",
                f"{key}={name} is a name that verl does not know",
                "it looks the name up after the first rollouts, and stops",
                f"{key}={use}, or the module that registers {name} in VERL_USE_EXTERNAL_MODULES",
            )


def rollout_engine(config: Any) -> str | None:
    """vllm, sglang, ..., or None where it is not set."""
    from omegaconf import OmegaConf

    rollout = config.actor_rollout_ref.rollout
    return None if OmegaConf.is_missing(rollout, "name") else rollout.name


def rollout(config: Any) -> Iterator[Finding]:
    """verl has no default for what generates."""
    if rollout_engine(config) is None:
        yield Finding(
            "rollout", "actor_rollout_ref.rollout.name is not set", "main_ppo would stop when it reads it",
            "actor_rollout_ref.rollout.name=vllm",
        )  # fmt: skip


def scope(config: Any) -> Iterator[Finding]:
    """Whether the tokens that share statistics can differ at all."""
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
            "the paper's are those of one prompt group",
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
    if prompts % mini:
        yield Finding(
            "batch sizes",
            f"train_batch_size={prompts} is no multiple of ppo_mini_batch_size={mini} (both in prompts)",
            "the last update of a batch would be of another size, or verl refuses",
            f"{ACTOR}.ppo_mini_batch_size={prompts}",
        )
    sequence_parallel = parallel = _sequence_parallel(actor)
    if actor.strategy == "megatron":
        parallel *= actor.megatron.tensor_model_parallel_size * actor.megatron.pipeline_model_parallel_size
    if gpus % parallel:
        yield Finding(
            "batch sizes",
            f"{gpus} GPUs cannot be divided into model replicas of {parallel}",
            "the actor would not start",
            f"trainer.n_gpus_per_node={parallel}, or another parallel size of the actor",
        )
    elif mini * n % (gpus // parallel):
        ranks = gpus // parallel
        fitting = next(size for size in range(mini, mini + ranks + 1) if size * n % ranks == 0)
        yield Finding(
            "batch sizes",
            f"{mini} prompts x {n} responses of a mini-batch are no multiple of {ranks} data-parallel ranks",
            "verl fills up with empty rows, which the weights leave out but some ranks compute in vain",
            f"data.train_batch_size={fitting} {ACTOR}.ppo_mini_batch_size={fitting}",
            fatal=False,
        )
    if gpus % rollout.tensor_model_parallel_size:
        yield Finding(
            "batch sizes",
            f"{gpus} GPUs cannot be divided into vLLM servers of {rollout.tensor_model_parallel_size}",
            "the rollout would not start",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        )
    longest = config.data.max_prompt_length + config.data.max_response_length
    ref = config.actor_rollout_ref.ref
    of_ref = ref.log_prob_use_dynamic_bsz and (actor.use_kl_loss or config.algorithm.use_kl_in_reward)
    limits = {
        "actor.ppo_max_token_len_per_gpu": (actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu),
        "rollout.log_prob_max_token_len_per_gpu": (
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
        ),
        "ref.log_prob_max_token_len_per_gpu": (of_ref, ref.log_prob_max_token_len_per_gpu),
    }
    short = {key: tokens for key, (used, tokens) in limits.items() if used and tokens * sequence_parallel < longest}
    if short:
        on = f" on {sequence_parallel} GPUs" if sequence_parallel > 1 else ""
        yield Finding(
            "batch sizes",
            f"{', '.join(f'{key}={tokens}' for key, tokens in short.items())}{on}: less than one sequence of {longest} "
            "tokens",
            "verl cannot make a micro-batch of it, and stops in the first long step",
            " ".join(f"actor_rollout_ref.{key}={4 * longest}" for key in short),
        )


def _sequence_parallel(actor: Any) -> int:
    """GPUs that share the tokens of one sequence."""
    if actor.strategy == "megatron":
        return actor.megatron.context_parallel_size
    places = (actor, actor.get("fsdp_config") or {})  # the former is deprecated, and wins
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
    """Whether it can be loaded; and the key at the top level, which verl's trainer does not read."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    try:
        get_custom_reward_fn(config)
    except Exception as error:  # whatever the user's module raises
        yield Finding(
            "reward",
            f"reward.custom_reward_function.path={config.reward.custom_reward_function.path} cannot be loaded "
            f"({first_line(error)})",
            "the reward's workers would stop at the first batch",
            f"if it is this package's: {how_to_install('data')}; else a path and a name that exist",
        )
    legacy = config.get("custom_reward_function") or {}
    if legacy.get("path"):
        yield Finding(
            "reward",
            f"custom_reward_function.path={legacy.get('path')} stands at the top level",
            "verl's main_ppo ignores it without a word, and scores by its own function",
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
        return  # said by method()
    except Exception as error:  # assertions, ValueErrors and hydra's instantiation errors
        yield Finding(
            "verl",
            f"verl refuses these settings: {' '.join(str(error).split())}",
            "main_ppo would not start",
            "change the setting that verl names",
        )
