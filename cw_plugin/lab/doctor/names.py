"""The check of names that verl looks up late: in its workers, or after the first rollouts."""

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cw_plugin.hosts.verl.refused_settings import BYPASS, LOSS_MODE, uses_v1
from cw_plugin.lab.configs import listed
from cw_plugin.lab.doctor.finding import Finding, said

_ROLLOUT = "actor_rollout_ref.rollout"
_KL = ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]  # of verl's kl_penalty_forward
KL_PENALTIES = [*_KL, *(f"{name}+" for name in _KL)]


def check_names(config: DictConfig) -> Iterator[Finding]:
    """Names that verl does not have, in each of its registries that this run asks; and classes that it cannot load."""
    for library in listed(OmegaConf.select(config, "actor_rollout_ref.model.external_lib")):
        importlib.import_module(library)  # in which a user may register names
    for setting, known in _known(config).items():
        for name in listed(OmegaConf.select(config, setting)):
            if name not in known:
                problem = f"{setting}={name}: verl has no such name, which it would say after minutes"
                yield Finding(problem, f"{setting}=<one of {', '.join(map(str, known))}>")
    for setting, load in _loaded(config).items():
        try:
            load()
        except (ImportError, AttributeError, AssertionError, OSError, RuntimeError, TypeError, ValueError) as error:
            yield Finding(f"{setting}: verl cannot load it ({said(error)})", "correct its path and name")


def agent_loops(config: DictConfig) -> set[str]:
    """The names that ``default_agent_loop`` and the column ``agent_name`` may have."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.utils.import_utils import resolve_config_path

    path = OmegaConf.select(config, f"{_ROLLOUT}.agent.agent_loop_config_path")
    of_user = OmegaConf.load(resolve_config_path(path)) if path else []
    return {*_agent_loop_registry, *(loop.name for loop in of_user)}


def _known(config: DictConfig) -> dict[str, Iterable[Any]]:
    """The names that verl has for each setting that it looks up in this run."""
    from verl.experimental.agent_loop.tool_parser import ToolParser
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.distillation.losses import DISTILLATION_LOSS_REGISTRY
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
    from verl.trainer.ppo.reward import get_custom_reward_fn
    from verl.trainer.ppo.rollout_corr_helper import SUPPORTED_ROLLOUT_RS_OPTIONS
    from verl.utils.tracking import Tracking
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    with suppress(Exception):  # of which check_verl tells; the file may register a reward manager
        get_custom_reward_fn(config)
    algorithm, actor, rollout = config.algorithm, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    rollouts = RolloutReplicaRegistry._registry
    known: dict[str, Iterable[Any]] = {
        "algorithm.adv_estimator": ADV_ESTIMATOR_REGISTRY,
        LOSS_MODE: POLICY_LOSS_REGISTRY,
        f"{_ROLLOUT}.name": rollouts,
        f"{_ROLLOUT}.agent.default_agent_loop": agent_loops(config),
        "algorithm.rollout_correction.rollout_is": ["token", "sequence"],
        "trainer.logger": [*Tracking.supported_backend, "tracking"],
        "trainer.resume_mode": ["auto", "disable", "resume_path"],
    }
    if rollout.multi_turn.enable or rollout.agent.default_agent_loop != "single_turn_agent":
        known[f"{_ROLLOUT}.multi_turn.format"] = ToolParser._registry
    if config.reward.reward_manager.source == "register":
        known["reward.reward_manager.name"] = REWARD_MANAGER
    if config.reward.reward_model.enable:
        known["reward.reward_model.rollout.name"] = rollouts
    if uses_v1(config):
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

        known["trainer.v1.trainer_mode"] = TRAINER_REGISTRY
        known["trainer.v1.sampler.max_off_policy_strategy"] = ["drop", "wait"]
    if algorithm.use_kl_in_reward:
        known["algorithm.kl_penalty"] = KL_PENALTIES
        known["algorithm.kl_ctrl.type"] = ["fixed", "adaptive"]
    if actor.use_kl_loss:
        known["actor_rollout_ref.actor.kl_loss_type"] = KL_PENALTIES
    if OmegaConf.select(config, "distillation.enabled"):
        known["distillation.distillation_loss.loss_mode"] = DISTILLATION_LOSS_REGISTRY
    if OmegaConf.select(config, BYPASS):
        known["algorithm.rollout_correction.loss_type"] = ["ppo_clip", "reinforce"]
    if "," not in (OmegaConf.select(config, "algorithm.rollout_correction.rollout_rs") or ","):
        known["algorithm.rollout_correction.rollout_rs"] = sorted(SUPPORTED_ROLLOUT_RS_OPTIONS)
    return known


def _loaded(config: DictConfig) -> dict[str, Callable[[], object]]:
    """What loads each class or file that a setting of this run names, as verl does it."""
    from verl.checkpoint_engine import CheckpointEngineRegistry
    from verl.utils.import_utils import import_external_libs, load_class_from_fqn, load_extern_object
    from verl.utils.import_utils import resolve_config_path

    loaded: dict[str, Callable[[], object]] = {}
    for setting in ("data.custom_cls", "trainer.v1.sampler.custom_sampler"):
        given = OmegaConf.select(config, setting)
        if given and given.path and given.name:
            loaded[setting] = partial(load_extern_object, given.path, given.name)
    for setting in (f"{_ROLLOUT}.agent.agent_loop_manager_class", "trainer.checkpoint_callback_class"):
        if OmegaConf.select(config, setting):
            loaded[setting] = partial(load_class_from_fqn, OmegaConf.select(config, setting))
    for setting in (f"{_ROLLOUT}.multi_turn.tool_config_path", f"{_ROLLOUT}.multi_turn.function_tool_path"):
        if OmegaConf.select(config, setting):
            loaded[setting] = partial(_open, resolve_config_path, OmegaConf.select(config, setting))
    engine, optimizer = config.actor_rollout_ref.rollout.checkpoint_engine, config.actor_rollout_ref.actor.optim
    import_external_libs(engine.get("custom_backend_module") or None)
    loaded[f"{_ROLLOUT}.checkpoint_engine.backend={engine.backend}"] = partial(
        CheckpointEngineRegistry.get, engine.backend
    )
    if optimizer.get("optimizer_impl"):  # of FSDP
        name = f"actor_rollout_ref.actor.optim.optimizer={optimizer.optimizer}"
        loaded[name] = lambda: getattr(importlib.import_module(optimizer.optimizer_impl), optimizer.optimizer)
    return loaded


def _open(resolve: Callable[[str], str], path: str) -> None:
    with open(resolve(path), "rb"):
        pass
