"""The check of names that verl looks up after minutes: in its workers, or after the first rollouts."""

import importlib
import pkgutil
from collections.abc import Collection, Iterator
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

from cw_plugin.hosts.verl import NAME
from cw_plugin.hosts.verl.refused_settings import LOSS_MODE
from cw_plugin.lab.doctor.finding import Finding

ROLLOUT = "actor_rollout_ref.rollout"
AGENT_LOOP = f"{ROLLOUT}.agent.default_agent_loop"
REWARD_MANAGER = "reward.reward_manager.name"


class Names(NamedTuple):
    """Usual names of a setting, for which verl need not be imported, which takes seconds; and where verl has all."""

    usual: tuple[str, ...]
    registry: str | None = None


NAMES = {
    "algorithm.adv_estimator": Names((NAME, "grpo"), "verl.trainer.ppo.core_algos:ADV_ESTIMATOR_REGISTRY"),
    LOSS_MODE: Names((NAME, "vanilla", "clip_cov"), "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY"),
    f"{ROLLOUT}.name": Names(("vllm",), "verl.workers.rollout.replica:RolloutReplicaRegistry._registry"),
    f"{ROLLOUT}.mode": Names(("async",)),
    f"{ROLLOUT}.checkpoint_engine.backend": Names(
        ("naive",), "verl.checkpoint_engine:CheckpointEngineRegistry._registry"
    ),
    f"{ROLLOUT}.multi_turn.format": Names(("hermes",), "verl.experimental.agent_loop.tool_parser:ToolParser._registry"),
    AGENT_LOOP: Names(("single_turn_agent",), "verl.experimental.agent_loop.agent_loop:_agent_loop_registry"),
    REWARD_MANAGER: Names(("naive",), "verl.experimental.reward_loop.reward_manager.registry:REWARD_MANAGER"),
    "distillation.distillation_loss.loss_mode": Names(
        ("k3",), "verl.trainer.distillation.losses:DISTILLATION_LOSS_REGISTRY"
    ),
    "trainer.logger": Names(
        ("console", "file", "tensorboard", "wandb"), "verl.utils.tracking:Tracking.supported_backend"
    ),
}


def check_names(config: DictConfig) -> Iterator[Finding]:
    """Names that verl does not have."""
    of_user = set()  # settings whose names verl takes from a file of the user's own
    if OmegaConf.select(config, f"{ROLLOUT}.agent.agent_loop_config_path"):
        of_user.add(AGENT_LOOP)
    if OmegaConf.select(config, "reward.reward_manager.source") == "importlib":
        of_user.add(REWARD_MANAGER)
    for setting, (usual, _) in NAMES.items():
        value = None if setting in of_user else OmegaConf.select(config, setting)
        names = [value] if isinstance(value, str) else list(value or [])
        unusual = [name for name in names if name not in usual]
        known = _known(config, setting) if unusual else ()
        for name in unusual:
            if name not in known:
                problem = f"{setting}={name}: verl has no such name, which it would say after minutes"
                yield Finding(problem, f"{setting}=<one of {', '.join(known)}>")


def _known(config: DictConfig, setting: str) -> Collection[str]:
    """The names that verl has for a setting, with those of the user's own library."""
    libraries = OmegaConf.select(config, "actor_rollout_ref.model.external_lib")
    for library in [libraries] if isinstance(libraries, str) else libraries or []:
        importlib.import_module(library)
    usual, registry = NAMES[setting]
    return [str(name) for name in pkgutil.resolve_name(registry)] if registry else usual
