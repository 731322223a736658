"""The checks of settings: what this package or verl refuses, and what verl reads otherwise than it was meant."""

import inspect
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import CWGRPOError
from cw_plugin.hosts.verl import NAME
from cw_plugin.hosts.verl.refused_settings import ACTOR, BYPASS, check_config, uses_v1
from cw_plugin.lab.compose import compose
from cw_plugin.lab.configs import flat, listed
from cw_plugin.lab.doctor.files import instead
from cw_plugin.lab.doctor.finding import Finding, error_of, said

METRICS = "VERL_FILE_LOGGER_PATH"
_ROLLOUT = "actor_rollout_ref.rollout"
_CLIP_RATIO = 0.2  # verl's default
READ_BY_REPORT = {"file", "tensorboard", "wandb", "tracking", "trackio"}  # of verl's loggers; tracking is wandb
_REWARD = "reward.custom_reward_function"
_RENAMED = {  # by verl 0.9, where what stood at the top level has another name below reward
    "reward_model.reward_manager": "reward_manager.name",
    "reward_model.num_workers": "num_workers",
    "reward_model.reward_loop_source": "reward_manager.source",
    "reward_model.reward_loop_module_path": "reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward_manager.module.name",
    "reward_model.model.path": "reward_model.model_path",
}


def check_method(config: DictConfig) -> Iterator[Finding]:
    """Estimator, loss and options that this package refuses."""
    estimator, loss = config.algorithm.adv_estimator, config.actor_rollout_ref.actor.policy_loss.loss_mode
    if NAME not in (estimator, loss):
        problem = f"neither algorithm.adv_estimator={estimator} nor the loss is {NAME}: this run is not CW-GRPO"
        yield Finding(problem, f"algorithm.adv_estimator={NAME}", fatal=False)
    check_config(config)


def check_switches(config: DictConfig) -> Iterator[Finding]:
    """Texts such as ``no`` where verl expects a boolean, and reads True; and ``None``, which is a text for hydra."""
    default = compose([])
    OmegaConf.resolve(default)
    defaults = flat(default)
    for key, value in flat(config).items():
        if value == "None":
            is_fatal = not isinstance(defaults.get(key), str)
            yield Finding(f"{key}=None is a text; what hydra reads as nothing is null", f"{key}=null", is_fatal)
        elif isinstance(value, str) and isinstance(defaults.get(key), bool) and not value.startswith("${"):
            yield Finding(f"{key}={value} is text, which verl reads as True", f"{key}=True, or {key}=False")


def check_ignored(config: DictConfig) -> Iterator[Finding]:
    """What verl ignores: rewards at the top level, which fully_async_policy alone moves, val_only, and clip_ratio."""
    # In the oldest releases, which have no ``reward``, this is their place.
    values = flat(config) if config.get("async_training") is None and "reward" in config else {}
    for key, value in values.items():
        if key.startswith(("custom_reward_function.", "reward_model.", "sandbox_fusion.")) and value is not None:
            problem = f"{key}={value} stands at the top level, where verl 0.9 ignores it silently"
            name = _RENAMED.get(key, key)
            if name.startswith("reward_model.reward_kwargs."):
                name = name.removeprefix("reward_model.")
            yield Finding(problem, f"reward.{name}={value}")
    if config.trainer.val_only and not config.trainer.val_before_train:
        problem = "trainer.val_only=True does nothing with val_before_train=False: verl trains"
        yield Finding(problem, "trainer.val_before_train=True")
    actor = config.actor_rollout_ref.actor
    ends = [actor.get("clip_ratio_low"), actor.get("clip_ratio_high")]
    if actor.clip_ratio != _CLIP_RATIO and None not in ends and actor.clip_ratio not in ends:
        problem = f"{ACTOR}.clip_ratio={actor.clip_ratio} does nothing beside clip_ratio_low and clip_ratio_high={ends}"
        yield Finding(problem, f"{ACTOR}.clip_ratio_low and {ACTOR}.clip_ratio_high={actor.clip_ratio}", fatal=False)


def check_schedule(config: DictConfig) -> Iterator[Finding]:
    """Steps in which the actor is not trained, and validations that ask the same again."""
    asked, warmup = config.actor_rollout_ref.rollout.val_kwargs, config.trainer.critic_warmup
    if asked.n > 1 and asked.temperature == 0:
        problem = f"{_ROLLOUT}.val_kwargs.n={asked.n} with temperature=0: the answers to a prompt are the same"
        yield Finding(problem, f"{_ROLLOUT}.val_kwargs.temperature=0.6, or n=1", fatal=False)
    if warmup and config.algorithm.adv_estimator == NAME and not config.critic.enable:
        problem = f"trainer.critic_warmup={warmup}: until then, verl does not train the actor, and there is no critic"
        yield Finding(problem, "trainer.critic_warmup=0", fatal=False)


def check_sizes(config: DictConfig) -> Iterator[Finding]:
    """Sizes that do not divide one another, on which verl's workers end when they have loaded the model.

    Only where the rollouts have the GPUs of the trainer.
    """
    actor, rollout, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.trainer
    gpus = trainer.n_gpus_per_node * trainer.nnodes
    is_known = actor.strategy in ("fsdp", "fsdp2", "megatron") and config.actor_rollout_ref.hybrid_engine
    if not is_known or not gpus or not uses_v1(config) or trainer.v1.trainer_mode == "separate_async":
        return
    names = [f"{name}_parallel_size" for name in ("tensor_model", "data", "pipeline_model")]
    of_rollout = math.prod(rollout.get(name) or 1 for name in names)
    if gpus % of_rollout:
        problem = f"{_ROLLOUT}: a rollout has {' * '.join(names)} = {of_rollout} GPU(s), which do not divide the {gpus}"
        yield Finding(f"{problem} of the run", f"{_ROLLOUT}.tensor_model_parallel_size=<a divisor of {gpus}>")
    of_model = _gpus_of_a_model(actor, gpus)
    if gpus % of_model:
        problem = f"{ACTOR}: its parallel sizes need {of_model} GPU(s), which do not divide the {gpus} of the run"
        yield Finding(problem, "other parallel sizes, or another number of GPUs")
    else:
        yield from _check_shares(config, gpus // of_model)


def _check_shares(config: DictConfig, copies: int) -> Iterator[Finding]:
    """Whether responses can be shared by the copies of the actor, and a share be taken in micro-batches."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    batch = actor.ppo_mini_batch_size * rollout.n
    if batch % copies:
        problem = f"{ACTOR}.ppo_mini_batch_size * rollout.n = {batch} response(s) cannot be shared by {copies} copies"
        yield Finding(problem, f"{ACTOR}.ppo_mini_batch_size=<a multiple of {copies // math.gcd(copies, rollout.n)}>")
        return
    if actor.use_dynamic_bsz != rollout.log_prob_use_dynamic_bsz:
        problem = f"{ACTOR}.use_dynamic_bsz={actor.use_dynamic_bsz}, and {_ROLLOUT}.log_prob_use_dynamic_bsz="
        yield Finding(f"{problem}{rollout.log_prob_use_dynamic_bsz}", "set both to the same")
    if actor.use_dynamic_bsz:
        return
    updates = math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size)  # verl fills up the last one
    divided = [(f"{ACTOR}.ppo_micro_batch_size_per_gpu", batch)]
    if not OmegaConf.select(config, BYPASS):
        divided.append((f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", updates * batch))
    if actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        divided.append(("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu", updates * batch))
    for name, responses in divided:
        size = OmegaConf.select(config, name)
        if size and responses // copies % size:
            problem = f"{name}={size} does not divide the {responses // copies} responses of a process"
            yield Finding(problem, f"{name}=<a divisor of {responses // copies}>")


def _gpus_of_a_model(actor: DictConfig, gpus: int) -> int:
    """How many GPUs of the run have the same responses: a copy of the actor, or the parts of a sequence."""
    if actor.strategy == "megatron":
        if actor.megatron.get("dynamic_context_parallel"):
            return gpus
        names = ("tensor_model", "pipeline_model", "context")
        return math.prod(actor.megatron[f"{name}_parallel_size"] for name in names)
    size = "ulysses_sequence_parallel_size"
    at_top = actor.get(size) or 1  # its name before 0.9, which counts if it is set
    return int(at_top if at_top > 1 else OmegaConf.select(actor, f"fsdp_config.{size}") or 1)


def check_aggregation(config: DictConfig) -> Iterator[Finding]:
    """Whether the loss averages as in the paper: over the tokens of a response, then over responses, none empty."""
    actor, prompts = config.actor_rollout_ref.actor, config.data.train_batch_size
    if actor.loss_agg_mode != "seq-mean-token-mean":
        mode = f"loss_agg_mode={actor.loss_agg_mode}"
        problem = f"{mode}: the paper averages over a response's tokens, then over responses"
        yield Finding(problem, f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", fatal=False)
    if prompts % actor.ppo_mini_batch_size:
        problem = f"data.train_batch_size={prompts}: verl adds empty responses, which count in a mean over responses"
        yield Finding(problem, f"a multiple of ppo_mini_batch_size={actor.ppo_mini_batch_size}", fatal=False)


def check_metrics(config: DictConfig) -> Iterator[Finding]:
    """What ``cw-grpo report`` would not find: metrics of another logger, or of earlier starts."""
    loggers = listed(config.trainer.logger)
    if not READ_BY_REPORT.intersection(loggers):
        problem = f"trainer.logger=[{','.join(loggers)}]: cw-grpo report will not find this run's metrics"
        fix = f"trainer.logger=[{','.join([*loggers, 'file'])}], and {METRICS}=FOLDER/metrics.jsonl in the environment"
        yield Finding(problem, fix, fatal=False)
    path = OmegaConf.select(config, f"ray_kwargs.ray_init.runtime_env.env_vars.{METRICS}") or os.environ.get(METRICS)
    if "file" in loggers and path and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        fix = instead(path) or f"mkdir -p {Path(path).parent}, and name a file in it"
        yield Finding(f"{METRICS}={path} is no file that verl can write: verl makes no folder for it", fix)
    elif "file" in loggers and path and Path(path).exists():
        problem = f"{path} exists, and main_ppo overwrites it, also where it resumes"
        fix = f"rename it before the start, to {Path(path).stem}.1.jsonl or the next number: cw-grpo report reads both"
        yield Finding(problem, fix, fatal=False)


def check_verl(config: DictConfig) -> Iterator[Finding]:
    """What verl itself refuses: settings, and a reward function that its reward workers cannot load."""
    from hydra.errors import InstantiationException
    from verl.trainer.ppo import reward, utils
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    yield from _check_call(config, reward.get_custom_reward_fn(config))
    try:
        if config.get("async_training") is None:  # fully_async_policy does not ask
            validate_config(config, utils.need_reference_policy(config), utils.need_critic(config))
        elif config.actor_rollout_ref.hybrid_engine:
            problem = "actor_rollout_ref.hybrid_engine=True, which fully_async_policy refuses when its workers start"
            yield Finding(problem, "actor_rollout_ref.hybrid_engine=False")
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)  # which verl does in its workers
    except CWGRPOError:
        pass  # of this package's hook; other checks report it
    except (ValueError, AssertionError, NotImplementedError, InstantiationException) as error:
        cause = error.__cause__ or error  # hydra wraps what a class of verl's settings says
        yield Finding(f"verl refuses these settings: {said(cause)}", "correct the setting that verl names")


def _check_call(config: DictConfig, reward_fn: Any) -> Iterator[Finding]:
    """Whether a reward function takes what verl's reward managers pass; verl drops the responses on which it fails.

    ``reward_fn`` is verl's partial, which holds the user's function and ``reward_kwargs``; None if there is none.
    """
    if reward_fn is None or OmegaConf.select(config, "reward.reward_manager.source") != "register":
        return
    function, keywords = reward_fn.args
    passed = dict.fromkeys(["data_source", "solution_str", "ground_truth", "extra_info"])
    if config.reward.reward_model.enable:
        passed |= dict.fromkeys(["reward_router_address", "reward_model_tokenizer"])
    error = error_of(lambda: inspect.signature(function).bind(**passed | keywords))
    if error:
        problem = f"{_REWARD}.name={config.reward.custom_reward_function.name} cannot be called as verl does: {error}"
        yield Finding(problem, f"let it take {', '.join(passed)} and {_REWARD}.reward_kwargs by name")
