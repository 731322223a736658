"""The check of names that verl looks up after minutes: in its workers, or after the first rollouts."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import NamedTuple

from omegaconf import DictConfig, OmegaConf

from cw_plugin.hosts.verl import NAME
from cw_plugin.hosts.verl.refused_settings import LOSS_MODE
from cw_plugin.lab.doctor.finding import Finding

ROLLOUT = "actor_rollout_ref.rollout"
AGENT_LOOP = f"{ROLLOUT}.agent.default_agent_loop"
REWARD_MANAGER = "reward.reward_manager.name"
LOGGER = "trainer.logger"


class Names(NamedTuple):
    """Usual names of a setting, for which verl need not be imported, which takes seconds; and where verl has all."""

    usual: tuple[str, ...]
    registry: str


NAMES = {
    "algorithm.adv_estimator": Names((NAME, "grpo"), "verl.trainer.ppo.core_algos:ADV_ESTIMATOR_REGISTRY"),
    LOSS_MODE: Names((NAME, "vanilla", "clip_cov"), "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY"),
    f"{ROLLOUT}.name": Names(("vllm",), "verl.workers.rollout.replica:RolloutReplicaRegistry._registry"),
    AGENT_LOOP: Names(("single_turn_agent",), "verl.experimental.agent_loop.agent_loop:_agent_loop_registry"),
    REWARD_MANAGER: Names(("naive",), "verl.experimental.reward_loop.reward_manager.registry:REWARD_MANAGER"),
    LOGGER: Names(("console", "file", "tensorboard", "wandb"), "verl.utils.tracking:Tracking.supported_backend"),
}


def check_names(config: DictConfig) -> Iterator[Finding]:
    """Names that verl does not have."""
    of_user = set()  # settings whose names verl takes from a file of the user's own
    if OmegaConf.select(config, f"{ROLLOUT}.agent.agent_loop_config_path"):
        of_user.add(AGENT_LOOP)
    if OmegaConf.select(config, "reward.reward_manager.source") == "importlib":
        of_user.add(REWARD_MANAGER)
    for setting, (usual, registry) in NAMES.items():
        value = OmegaConf.select(config, setting)
        names = [value] if isinstance(value, str) else value or []
        if setting in of_user or set(names) <= set(usual):
            continue
        known = _registered(config, registry)
        for name in names:
            if name not in known:
                problem = f"{setting}={name}: verl has no such name, which it would say after minutes"
                yield Finding(problem, f"{setting}=<one of {', '.join(known)}>")


def _registered(config: DictConfig, registry: str) -> list[str]:
    """The names in a registry of verl, with those of the user's own library."""
    libraries = OmegaConf.select(config, "actor_rollout_ref.model.external_lib")
    for library in [libraries] if isinstance(libraries, str) else libraries or []:
        importlib.import_module(library)
    return [str(name) for name in pkgutil.resolve_name(registry)]
