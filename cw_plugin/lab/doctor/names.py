"""The check of names that verl looks up late: in its workers, or after the first rollouts."""

import importlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cw_plugin.hosts.verl.refused_settings import BYPASS, LOSS_MODE
from cw_plugin.lab.configs import listed
from cw_plugin.lab.doctor.finding import Finding, error_of

_ROLLOUT = "actor_rollout_ref.rollout"
_CORRECTION = "algorithm.rollout_correction"
_LOOP = f"{_ROLLOUT}.agent.default_agent_loop"
_CHECKPOINT = "actor_rollout_ref.actor.checkpoint"
_ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
_SCHEDULE = "async_training.dynamic_schedule_policy"

_CONTENTS = ["model", "optimizer", "extra", "hf_model"]
_KL = ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]  # of verl's kl_penalty_forward
KL_PENALTIES = [*_KL, *(f"{name}+" for name in _KL)]
# What verl passes on to vLLM, which refuses another name when the trainer has loaded its model.
OF_VLLM = {
    f"{_ROLLOUT}.dtype": ["auto", "half", "float16", "bfloat16", "float", "float32"],
    f"{_ROLLOUT}.logprobs_mode": ["raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs"],
    f"{_ROLLOUT}.scheduling_policy": ["fcfs", "priority"],
}
# The names that a setting may have: where verl's registry of them is, or, of what it compares in code, the names.
_NAMES: dict[str, str | list[str]] = {
    _ATTENTION: "transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS",
    "algorithm.adv_estimator": "verl.trainer.ppo.core_algos:ADV_ESTIMATOR_REGISTRY",
    LOSS_MODE: "verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY",
    f"{_ROLLOUT}.name": "verl.workers.rollout.replica:RolloutReplicaRegistry._registry",
    f"{_ROLLOUT}.multi_turn.format": "verl.experimental.agent_loop.tool_parser:ToolParser._registry",
    f"{_CORRECTION}.rollout_rs": "verl.trainer.ppo.rollout_corr_helper:SUPPORTED_ROLLOUT_RS_OPTIONS",
    "reward.reward_manager.name": "verl.experimental.reward_loop.reward_manager.registry:REWARD_MANAGER",
    "reward.reward_model.rollout.name": "verl.workers.rollout.replica:RolloutReplicaRegistry._registry",
    "distillation.distillation_loss.loss_mode": "verl.trainer.distillation.losses:DISTILLATION_LOSS_REGISTRY",
    "trainer.logger": "verl.utils.tracking:Tracking.supported_backend",
    "trainer.v1.trainer_mode": "verl.trainer.ppo.v1:trainer_base.TRAINER_REGISTRY",
    _SCHEDULE: "verl.experimental.fully_async_policy.dynamic_schedule:base._policy_registry",
    **OF_VLLM,
    f"{_CORRECTION}.rollout_is": ["token", "sequence"],
    f"{_CORRECTION}.loss_type": ["ppo_clip", "reinforce"],
    "algorithm.kl_penalty": KL_PENALTIES,
    "algorithm.kl_ctrl.type": ["fixed", "adaptive"],
    "actor_rollout_ref.actor.kl_loss_type": KL_PENALTIES,
    "actor_rollout_ref.actor.strategy": ["fsdp", "fsdp2", "megatron", "veomni", "torchtitan", "automodel"],
    "actor_rollout_ref.model.fused_kernel_options.impl_backend": ["torch", "triton", "liger"],
    f"{_ROLLOUT}.trace.backend": ["weave", "mlflow", "trackio"],
    f"{_ROLLOUT}.multi_turn.tool_response_truncate_side": ["left", "right", "middle"],
    f"{_CHECKPOINT}.save_contents": _CONTENTS,
    f"{_CHECKPOINT}.load_contents": _CONTENTS,
    "global_profiler.tool": ["nsys", "npu", "torch", "torch_memory", "precision_debugger"],
    "trainer.resume_mode": ["auto", "disable", "resume_path"],
    "trainer.v1.sampler.max_off_policy_strategy": ["drop", "wait"],
}
# The switch of a setting that verl does not always look up.
_SWITCHES = {
    f"{_CORRECTION}.loss_type": BYPASS,
    "algorithm.kl_penalty": "algorithm.use_kl_in_reward",
    "algorithm.kl_ctrl.type": "algorithm.use_kl_in_reward",
    "actor_rollout_ref.actor.kl_loss_type": "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.model.fused_kernel_options.impl_backend": "actor_rollout_ref.model.use_fused_kernels",
    "global_profiler.tool": "global_profiler.steps",
    "reward.reward_model.rollout.name": "reward.reward_model.enable",
    "distillation.distillation_loss.loss_mode": "distillation.enabled",
    "trainer.v1.trainer_mode": "trainer.use_v1",
    _SCHEDULE: "async_training.use_dynamic_resource_scheduling",
    "trainer.v1.sampler.max_off_policy_strategy": "trainer.use_v1",
}


def check_names(config: DictConfig) -> Iterator[Finding]:
    """Names that verl does not have, in each of its registries that this run asks; and classes that it cannot load."""
    _load_what_registers_names(config)
    for setting in _NAMES:
        known = _known(setting) if _is_used(config, setting) else []
        for name in _named(config, setting):
            if known and name not in known:
                problem = f"{setting}={name}: verl has no such name, which it would say after minutes, or never"
                yield Finding(problem, f"{setting}=<one of {', '.join(map(str, known))}>")
    for setting, load in _loaded(config):
        error = error_of(load)
        if error:
            yield Finding(f"{setting}: verl cannot load it ({error})", "correct its path and name")
    loops = agent_loops(config)
    if OmegaConf.select(config, _LOOP) not in loops:
        problem = f"{_LOOP}={OmegaConf.select(config, _LOOP)}: verl has no such name, which it would say after minutes"
        yield Finding(problem, f"{_LOOP}=<one of {', '.join(sorted(loops))}>")


def agent_loops(config: DictConfig) -> set[str]:
    """The names that ``default_agent_loop`` and the column ``agent_name`` may have."""
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    return {*_agent_loop_registry, *(loop.name for loop in _agent_loops_of_user(config))}


def _agent_loops_of_user(config: DictConfig) -> Any:
    """Name and class of each, as verl's workers read them."""
    path = OmegaConf.select(config, f"{_ROLLOUT}.agent.agent_loop_config_path")
    return OmegaConf.load(_found(path)) if path else []


def _load_tools(path: str) -> None:
    """The types and the classes alone: some tools start Ray when they are made."""
    from verl.utils.import_utils import load_class_from_fqn

    for tool in OmegaConf.load(_found(path)).tools:
        with suppress(ImportError):  # earlier releases have it elsewhere, with other types
            from verl.tools.tool_registry import ToolType

            ToolType(tool.config.type)
        load_class_from_fqn(tool.class_name)


def _load_functions(path: str) -> None:
    from verl.tools.function_tool import load_function_tools_from_path  # earlier releases have no such setting

    load_function_tools_from_path(str(_found(path)))


def _found(path: str) -> Path:
    """A file, as verl looks for it."""
    from verl.experimental.agent_loop.utils import resolve_config_path

    return Path(resolve_config_path(path))


def _load_what_registers_names(config: DictConfig) -> None:
    """What of the user's own verl loads before it looks up a name."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    for setting in ("actor_rollout_ref.model.external_lib", f"{_ROLLOUT}.checkpoint_engine.custom_backend_module"):
        for library in listed(OmegaConf.select(config, setting)):
            importlib.import_module(library)
    with suppress(Exception):  # of which check_verl tells
        get_custom_reward_fn(config)


def _known(setting: str) -> Collection[Any]:
    """None where this release of verl has no such registry."""
    names = _NAMES[setting]
    if isinstance(names, list):
        return names
    besides = {"trainer.logger": ["tracking"], _ATTENTION: ["eager"]}  # wandb's old name; the models' own attention
    with suppress(ImportError, AttributeError):
        return [*resolve_name(names), *besides.get(setting, [])]
    return []


def _named(config: DictConfig, setting: str) -> list[Any]:
    """The names that a setting has. One of verl's settings has several in a text."""
    names = listed(OmegaConf.select(config, setting))
    if setting == f"{_CORRECTION}.rollout_rs":
        return [name.strip() for text in names for name in text.split(",") if name.strip()]
    return names


def _is_used(config: DictConfig, setting: str) -> bool:
    """Whether verl looks a setting up in this run, under the name that it has."""
    if setting == "reward.reward_manager.name":
        return bool(OmegaConf.select(config, "reward.reward_manager.source") == "register")
    if setting == _ATTENTION:
        return "/" not in str(OmegaConf.select(config, setting))  # which is a kernel on the hub
    if setting in OF_VLLM:
        return bool(OmegaConf.select(config, f"{_ROLLOUT}.name") == "vllm")
    return setting not in _SWITCHES or bool(OmegaConf.select(config, _SWITCHES[setting]))


def _loaded(config: DictConfig) -> Iterator[tuple[str, Callable[[], object]]]:
    """What loads each class or file that a setting of this run names, as verl does it."""
    from verl.checkpoint_engine import CheckpointEngineRegistry
    from verl.utils.import_utils import load_class_from_fqn, load_extern_object
    from verl.utils.torch_dtypes import PrecisionType

    manager = config.reward.reward_manager
    if manager.source != "register":
        with suppress(ImportError):  # verl 0.7.1 has no such function
            from verl.trainer.ppo.reward import resolve_reward_manager_cls

            yield f"reward.reward_manager.name={manager.name}", partial(resolve_reward_manager_cls, config)
    for setting in ("data.custom_cls", "trainer.v1.sampler.custom_sampler"):
        path, name = OmegaConf.select(config, f"{setting}.path"), OmegaConf.select(config, f"{setting}.name")
        if path:
            yield f"{setting}={path}:{name}", partial(load_extern_object, path, name)
    by_name: dict[str, Callable[[str], object]] = {
        f"{_ROLLOUT}.agent.agent_loop_manager_class": load_class_from_fqn,
        f"{_ROLLOUT}.checkpoint_manager_class": load_class_from_fqn,
        "trainer.checkpoint_callback_class": load_class_from_fqn,
        f"{_ROLLOUT}.multi_turn.tool_config_path": _load_tools,
        f"{_ROLLOUT}.multi_turn.function_tool_path": _load_functions,
        f"{_ROLLOUT}.router_config_path": lambda path: _found(path).open("rb").close(),
        "actor_rollout_ref.actor.fsdp_config.model_dtype": PrecisionType.to_dtype,
        **{
            f"actor_rollout_ref.actor.fsdp_config.mixed_precision.{kind}_dtype": PrecisionType.to_dtype
            for kind in ("param", "reduce", "buffer")
        },
        "actor_rollout_ref.ref.fsdp_config.model_dtype": PrecisionType.to_dtype,
        "actor_rollout_ref.actor.megatron.dtype": PrecisionType.to_dtype,
        f"{_ROLLOUT}.checkpoint_engine.backend": CheckpointEngineRegistry.get,
    }
    for setting, load in by_name.items():
        name = OmegaConf.select(config, setting)
        if name:
            yield f"{setting}={name}", partial(load, name)
    for loop in _agent_loops_of_user(config):
        yield f"{_ROLLOUT}.agent.agent_loop_config_path: {loop.name}", partial(load_class_from_fqn, loop._target_)
    optimizer = config.actor_rollout_ref.actor.optim
    if optimizer.get("optimizer_impl"):  # of FSDP
        name = f"{optimizer.optimizer_impl}:{optimizer.optimizer}"
        yield f"actor_rollout_ref.actor.optim.optimizer={optimizer.optimizer}", partial(resolve_name, name)
