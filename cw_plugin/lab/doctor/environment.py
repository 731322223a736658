"""The checks of the packages that a run's engines import: most of them only in workers, when the GPUs are taken."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from omegaconf import DictConfig

from cw_plugin.hosts.verl.refused_settings import uses_v1
from cw_plugin.lab.configs import listed
from cw_plugin.lab.doctor.finding import Finding

_TRAINER = "verl's trainer"
_LOGGERS = {name: name for name in ("wandb", "mlflow", "swanlab", "clearml", "tensorboard", "trackio", "rl_insight")}
_LOGGERS |= {"tracking": "wandb", "vemlp_wandb": "volcengine_ml_platform"}
_ROLLOUTS = ("vllm", "sglang")  # of another one, which a user has registered, nothing is known

# What verl's FSDP engine does to a model of transformers before it trains.
_PATCH = """
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl.models.transformers.monkey_patch import apply_monkey_patch
sizes = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 8}
numbers = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
apply_monkey_patch(Qwen2ForCausalLM(Qwen2Config(**sizes, **numbers)))
"""


def needed(config: DictConfig) -> dict[str, str]:
    """The modules that a run imports, and what imports each: a setting, or a part of verl; on CPUs, loggers alone."""
    device, actor, rollout = config.trainer.device, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    loggers = [name for name in listed(config.trainer.logger) if name in _LOGGERS]
    modules = {_LOGGERS[name]: f"trainer.logger={name}" for name in loggers}
    if device == "cpu":
        return modules
    modules |= {"ray": _TRAINER, "tensordict": _TRAINER}
    if rollout.name in _ROLLOUTS:
        modules[rollout.name] = f"actor_rollout_ref.rollout.name={rollout.name}"
    if uses_v1(config):
        modules["transfer_queue"] = _TRAINER
    if actor.strategy == "megatron":
        bridge = "mbridge" if actor.megatron.vanilla_mbridge else "megatron.bridge"
        modules |= dict.fromkeys(("megatron.core", "transformer_engine.pytorch", bridge), "model_engine=megatron")
    changed = config.actor_rollout_ref.model.get("override_config") or {}
    attention = changed.get("attn_implementation", "flash_attention_2")
    if device == "cuda" and attention == "flash_attention_2":  # on an NPU, verl takes the attention of its driver
        modules["flash_attn"] = f"attn_implementation={attention}, verl's default,"
    return modules


def check_packages(config: DictConfig) -> Iterator[Finding]:
    """Packages that are not installed, or whose import fails: each is imported in a fresh process."""
    for module, user in needed(config).items():
        error = failure_of(f"import {module}")
        if error:
            fix = "install its package for this torch and CUDA; verl's extras name the versions: verl[vllm,fsdp]"
            yield Finding(f"{user} imports {module}, which fails here ({error})", fix)


def check_trl(config: DictConfig) -> Iterator[Finding]:
    """Whether verl's FSDP engine starts beside TRL: verl takes a class from TRL, which newer releases do not have."""
    if config.actor_rollout_ref.actor.strategy == "megatron" or find_spec("trl") is None:
        return
    error = failure_of(_PATCH)
    if error and "trl" in error:
        problem = f"verl's FSDP engine cannot start beside the TRL that is installed here ({error})"
        yield Finding(problem, "pip uninstall trl; keep TRL in an environment of its own")


def failure_of(code: str) -> str | None:
    """The last line that a fresh Python prints on stderr if this code fails in it; None if it does not fail."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    return last_line(result) if result.returncode else None


def last_line(result: "subprocess.CompletedProcess[str]") -> str:
    """Of what a process has printed on stderr."""
    return "".join(result.stderr.strip().splitlines()[-1:])
