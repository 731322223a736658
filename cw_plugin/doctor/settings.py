"""Checks of the settings that need no file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import CWGRPOError, OptionsError, first_line, how_to_install
from cw_plugin.verl_integration import NAME
from cw_plugin.verl_integration.config import compose, leaves
from cw_plugin.verl_integration.options import check_config, estimator_and_loss

ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.policy_loss.loss_mode"


def method(config: Any) -> Iterator[Finding]:
    """Estimator, loss and options that this package refuses, and names that verl looks up only after a rollout."""
    estimator, loss = config.algorithm.adv_estimator, config.actor_rollout_ref.actor.policy_loss.get("loss_mode")
    unknown = list(_unknown("algorithm.adv_estimator", estimator, (NAME, "grpo")))
    unknown += _unknown(LOSS, loss, ("vanilla", NAME, "clip_cov"))
    yield from unknown
    try:
        check_config(config)
    except OptionsError as error:
        from cw_plugin.verl_integration.hooks import verl_has_its_own  # imports verl, which takes seconds

        if not verl_has_its_own():
            what, _, fix = str(error).partition("; ")
            yield Finding(what, fix)
    if not unknown and NAME not in (estimator, loss):
        what = f"neither algorithm.adv_estimator={estimator} nor the loss is {NAME}: this run is not CW-GRPO"
        yield Finding(what, f"algorithm.adv_estimator={NAME}", fatal=False)


def _unknown(key: str, name: Any, usual: tuple[str, ...]) -> Iterator[Finding]:
    if name in usual:
        return  # importing verl to look the name up takes seconds
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

    known = [str(name) for name in (POLICY_LOSS_REGISTRY if key == LOSS else ADV_ESTIMATOR_REGISTRY)]
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.8)
        yield Finding(
            f"{key}={name} is a name that verl does not know, and main_ppo would stop after the first rollouts",
            f"{key}={(near or usual)[0]}, or another of {', '.join(known)}; a module that registers it must be named "
            "in VERL_USE_EXTERNAL_MODULES",
        )


def switches(config: Any) -> Iterator[Finding]:
    """``no``, ``off`` and ``Flase`` are text to hydra, and True to verl."""
    suspects = {
        key: value
        for key, value in leaves(config).items()
        if isinstance(value, str)
        and (value.lower() in ("yes", "no", "on", "off") or difflib.get_close_matches(value.lower(), ("true", "false")))
    }
    default = leaves(compose([]), resolve=False) if suspects else {}
    for key, value in suspects.items():
        if isinstance(default.get(key), bool):
            yield Finding(f"{key}={value} is text, which verl reads as True", f"{key}=True, or {key}=False")


def scope(config: Any) -> Iterator[Finding]:
    """Whether the advantages of tokens that share statistics can differ."""
    estimator, loss = estimator_and_loss(config)
    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    by_batch = estimator and (config.algorithm.get(NAME) or {}).get("scope") == "batch"
    alike = "have equal advantages, so that every covariance is 0 and every weight 1: this is plain GRPO"
    if estimator and n < 2 and not by_batch:
        fix = f"actor_rollout_ref.rollout.n=12, or +algorithm.{NAME}.scope=batch"
        yield Finding(f"rollout.n={n}: the tokens of a prompt group of one response {alike}", fix)
    if by_batch:
        what = "scope=batch: the tokens of all prompts share means and sigma; in the paper, those of one prompt do"
        yield Finding(what, f"algorithm.{NAME}.scope=group", fatal=False)
    if loss and not actor.use_dynamic_bsz and actor.ppo_micro_batch_size_per_gpu == 1:
        fix = f"algorithm.adv_estimator={NAME} with {LOSS}=vanilla, or {ACTOR}.ppo_micro_batch_size_per_gpu=4"
        yield Finding(f"loss_mode={NAME}: the tokens of a micro-batch of one response {alike}", fix)


def ignored_reward(config: Any) -> Iterator[Finding]:
    """A reward function at the top level of the configuration."""
    path, name = ((config.get("custom_reward_function") or {}).get(key) for key in ("path", "name"))
    if path:
        yield Finding(
            f"custom_reward_function.path={path} stands at the top level, where verl ignores it without a word",
            f"reward.custom_reward_function.path={path} reward.custom_reward_function.name={name or 'compute_score'}",
        )


def batch_sizes(config: Any) -> Iterator[Finding]:
    """Batches that verl fills up with empty responses."""
    prompts, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    if prompts % mini:
        filled = -(-prompts // mini) * mini
        yield Finding(
            f"train_batch_size={prompts} is not a multiple of ppo_mini_batch_size={mini} (both count prompts): verl "
            f"fills each batch up to {filled} prompts with empty responses, which a mean over responses counts",
            f"data.train_batch_size={filled}",
            fatal=False,
        )


def aggregation(config: Any) -> Iterator[Finding]:
    """The paper's objective averages over the tokens of a response, then over responses."""
    mode = config.actor_rollout_ref.actor.loss_agg_mode
    if mode != "seq-mean-token-mean":
        what = f"loss_agg_mode={mode}: the paper's objective is the mean over a response's tokens, then over responses"
        yield Finding(what, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", fatal=False)


def loggers(config: Any) -> Iterator[Finding]:
    """``cw-grpo report`` reads what verl's loggers ``file`` and ``tensorboard`` write."""
    given = config.trainer.logger
    names = [given] if isinstance(given, str) else list(given or [])
    if not {"file", "tensorboard"} & set(names):
        yield Finding(
            f"trainer.logger=[{','.join(names)}]: cw-grpo report will not find this run's metrics",
            f"trainer.logger=[{','.join([*names, 'file'])}], and VERL_FILE_LOGGER_PATH=FOLDER/metrics.jsonl in the "
            "environment",
            fatal=False,
        )


def reward_function(config: Any) -> Iterator[Finding]:
    """Whether there is a reward function, and it can be loaded; verl's reward workers load it."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    path = config.reward.custom_reward_function.path
    ours = "reward.custom_reward_function.path=pkg://cw_plugin.rewards reward.custom_reward_function.name=compute_score"
    if not path:
        what = "reward.custom_reward_function.path is not set: verl drops responses whose data_source it does not know"
        yield Finding(what, f"{ours}, for answers in mathematics", fatal=False)
    try:
        get_custom_reward_fn(config)
    except Exception as error:  # whatever the user's module raises
        fix = f"if it is this package's: {how_to_install('data')}; else a path and a name that exist"
        yield Finding(f"reward.custom_reward_function.path={path} cannot be loaded ({first_line(error)})", fix)


def validation(config: Any) -> Iterator[Finding]:
    """``verl.utils.config.validate_config``, which main_ppo calls."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    except CWGRPOError:
        return  # raised by this package's hook; other checks report it
    except Exception as error:  # assertions, ValueErrors and hydra's instantiation errors
        what = f"verl refuses these settings: {' '.join(str(error).split())}"
        yield Finding(what, "change the setting that verl names")
