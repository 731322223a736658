"""The checks of settings: what this package or verl refuses, and what verl reads otherwise than it was meant."""

import difflib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from cw_plugin.configs import flat
from cw_plugin.errors import CWGRPOError, OptionsError
from cw_plugin.verl_integration import NAME
from cw_plugin.verl_integration.accepted_settings import check_config, estimator_and_loss
from cw_plugin.verl_integration.compose import compose
from cw_plugin.verl_integration.finding import Finding
from cw_plugin.verl_integration.ground_truths import REWARD

ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.policy_loss.loss_mode"
METRICS = "VERL_FILE_LOGGER_PATH"


def method(config: Any) -> Iterator[Finding]:
    """Estimator, loss and options that this package refuses, and names that verl looks up only after a rollout."""
    estimator, loss = config.algorithm.adv_estimator, config.actor_rollout_ref.actor.policy_loss.loss_mode
    if estimator not in (NAME, "grpo") or loss not in (NAME, "vanilla", "clip_cov"):  # importing verl takes seconds
        from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

        lookups = ("algorithm.adv_estimator", estimator, ADV_ESTIMATOR_REGISTRY), (LOSS, loss, POLICY_LOSS_REGISTRY)
        for key, name, known in lookups:
            if name not in known:
                what = f"{key}={name}: verl has no such name, which main_ppo would say after the first rollouts"
                yield Finding(what, f"{key}=<one of {', '.join(map(str, known))}>")
    if NAME not in (estimator, loss):
        what = f"neither algorithm.adv_estimator={estimator} nor the loss is {NAME}: this run is not CW-GRPO"
        yield Finding(what, f"algorithm.adv_estimator={NAME}", fatal=False)
    try:
        check_config(config)
    except OptionsError:
        from cw_plugin.verl_integration.hooks import verl_has_its_own

        if not verl_has_its_own():
            raise


def switches(config: Any) -> Iterator[Finding]:
    """``no``, ``off`` and ``Flase`` are text to hydra, and True to verl."""
    words = ("yes", "no", "on", "off", "true", "false")
    texts = {key: value for key, value in flat(config).items() if isinstance(value, str)}
    near = [key for key, value in texts.items() if difflib.get_close_matches(value.lower(), words, cutoff=0.7)]
    default = flat(compose([])) if near else {}
    for key in near:
        if isinstance(default.get(key), bool):
            yield Finding(f"{key}={texts[key]} is text, which verl reads as True", f"{key}=True, or {key}=False")


def scope(config: Any) -> Iterator[Finding]:
    """Whether the advantages of tokens that share statistics can differ."""
    estimator, loss = estimator_and_loss(config)
    actor, n = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    alike = "have equal advantages, so that every covariance is 0 and every weight 1: this is plain GRPO"
    if estimator and n < 2 and (config.algorithm.get(NAME) or {}).get("scope") != "batch":
        fix = f"actor_rollout_ref.rollout.n=12, or +algorithm.{NAME}.scope=batch"
        yield Finding(f"rollout.n={n}: the tokens of a prompt group of one response {alike}", fix)
    if loss and not actor.use_dynamic_bsz and actor.ppo_micro_batch_size_per_gpu == 1:
        fix = f"algorithm.adv_estimator={NAME} with {LOSS}=vanilla, or {ACTOR}.ppo_micro_batch_size_per_gpu=4"
        yield Finding(f"loss_mode={NAME}: the tokens of a micro-batch of one response {alike}", fix)


def reward(config: Any) -> Iterator[Finding]:
    """A reward function that verl ignores, or a missing one."""
    if ignored := OmegaConf.select(config, "custom_reward_function.path"):
        what = f"custom_reward_function.path={ignored} stands at the top level, where verl ignores it silently"
        yield Finding(what, f"{REWARD}.path={ignored}, and {REWARD}.name")
    elif not config.reward.custom_reward_function.path:
        what = f"{REWARD}.path is not set: verl drops responses whose data_source it does not know"
        fix = f"{REWARD}.path=pkg://cw_plugin.rewards {REWARD}.name=compute_score, for answers in mathematics"
        yield Finding(what, fix, fatal=False)


def aggregation(config: Any) -> Iterator[Finding]:
    """The paper's objective averages over the tokens of a response, then over responses; none is empty."""
    actor, prompts = config.actor_rollout_ref.actor, config.data.train_batch_size
    if actor.loss_agg_mode != "seq-mean-token-mean":
        what = f"loss_agg_mode={actor.loss_agg_mode}: the paper averages over a response's tokens, then over responses"
        yield Finding(what, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", fatal=False)
    if prompts % actor.ppo_mini_batch_size:
        what = f"data.train_batch_size={prompts}: verl adds empty responses, which count in a mean over responses"
        yield Finding(what, f"a multiple of ppo_mini_batch_size={actor.ppo_mini_batch_size}", fatal=False)


def metrics(config: Any) -> Iterator[Finding]:
    """What ``cw-grpo report`` would not find: metrics of another logger, or of earlier starts; the last accuracy."""
    names = [config.trainer.logger] if isinstance(config.trainer.logger, str) else list(config.trainer.logger or [])
    if not {"file", "tensorboard"} & set(names):
        what = f"trainer.logger=[{','.join(names)}]: cw-grpo report will not find this run's metrics"
        fix = f"trainer.logger=[{','.join([*names, 'file'])}], and {METRICS}=FOLDER/metrics.jsonl in the environment"
        yield Finding(what, fix, fatal=False)
    path = OmegaConf.select(config, f"ray_kwargs.ray_init.runtime_env.env_vars.{METRICS}") or os.environ.get(METRICS)
    if "file" in names and path and Path(path).exists():
        what = f"{path} exists, and main_ppo overwrites it, also where it resumes; the scripts of examples/ rename it"
        kept = next(other for n in itertools.count(1) if not (other := Path(path).with_suffix(f".{n}.jsonl")).exists())
        yield Finding(what, f"mv {path} {kept} before the start: cw-grpo report reads both", fatal=False)
    if config.trainer.test_freq <= 0:
        what = f"trainer.test_freq={config.trainer.test_freq}: verl does not measure the accuracy of the last step"
        yield Finding(what, "trainer.test_freq=50, or cw-grpo evaluate after training", fatal=False)


def verl(config: Any) -> Iterator[Finding]:
    """What verl itself refuses: settings, and a reward function that its reward workers cannot load."""
    from hydra.errors import InstantiationException
    from verl.trainer.ppo import reward, utils
    from verl.utils.config import validate_config

    reward.get_custom_reward_fn(config)
    try:
        validate_config(config, utils.need_reference_policy(config), utils.need_critic(config))
    except CWGRPOError:
        pass  # of this package's hook; other checks report it
    except (ValueError, AssertionError, NotImplementedError, InstantiationException) as error:
        said = error.__cause__ or error  # hydra wraps what a class of verl's settings says
        yield Finding(
            f"verl refuses these settings: {' '.join(str(said).split())}", "correct the setting that verl names"
        )
