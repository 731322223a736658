"""The checks of the environment: the packages that a run's engines import, and whether torch can use the GPUs.

verl imports most of these only in its workers, when the GPUs are already taken.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from cw_plugin.verl_integration.doctor.resources import gpus_here
from cw_plugin.verl_integration.finding import Finding

PAGE = "examples/gpu/README.md"

# Module -> the package to install.
_TRAINER = {"ray": "ray", "tensordict": "tensordict"}
_V1 = {"transfer_queue": "TransferQueue"}
_FLASH = {"flash_attn": "flash-attn"}
_MEGATRON = {"megatron.core": "megatron-core", "transformer_engine.pytorch": "transformer-engine[pytorch]"}


def needed(config: Any) -> dict[str, str]:
    """The modules that a run imports, and the package of each."""
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    modules = {**_TRAINER, rollout.name: rollout.name}
    if OmegaConf.select(config, "trainer.use_v1"):
        modules |= _V1
    if config.actor_rollout_ref.actor.strategy == "megatron":
        modules |= _MEGATRON
        old = config.actor_rollout_ref.actor.megatron.vanilla_mbridge
        modules |= {"mbridge": "mbridge"} if old else {"megatron.bridge": "megatron-bridge"}
    attention = (model.get("override_config") or {}).get("attn_implementation", "flash_attention_2")  # verl's default
    if model.use_remove_padding or attention == "flash_attention_2":
        modules |= _FLASH
    return modules


def missing_packages(config: Any) -> Iterator[Finding]:
    """Packages that are not installed; none is imported."""
    for module, package in needed(config).items() if config.trainer.device != "cpu" else []:
        if not _is_there(module):
            yield _missing(config, module, package)


def packages(config: Any) -> Iterator[Finding]:
    """Packages that are not installed, or whose import fails: each is imported in one fresh process."""
    for module, package in needed(config).items() if config.trainer.device != "cpu" else []:
        if not _is_there(module):
            yield _missing(config, module, package)
            continue
        command = [sys.executable, "-c", f"import {module}"]
        result = subprocess.run(command, capture_output=True, text=True, cwd="/")
        if result.returncode:
            said = "".join(result.stderr.strip().splitlines()[-1:])
            what = f"{module} is installed and cannot be imported ({said})"
            yield Finding(what, f"install {package} for this torch and CUDA, as {PAGE} says")


def gpus(config: Any) -> Iterator[Finding]:
    """Whether torch can use the GPUs of this machine, and there are as many as the run wants."""
    here, wanted = gpus_here(), config.trainer.n_gpus_per_node
    if config.trainer.device == "cpu" or not here:
        return
    code = "import torch; print(torch.version.cuda, torch.cuda.is_available())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    if said[:1] == ["None"]:
        yield Finding("torch is a build for CPUs, and this machine has a GPU", f"install torch as {PAGE} says")
    elif said[1:] == ["False"]:
        what = (
            f"torch is built for CUDA {said[0]}, and cannot use the GPU: most often the driver is older than that CUDA"
        )
        yield Finding(what, f"a newer driver (nvidia-smi prints its CUDA), or an environment for it, as {PAGE} says")
    if len(here) < wanted:
        what = f"trainer.n_gpus_per_node={wanted}, and this machine has {len(here)}"
        yield Finding(what, f"NGPUS_PER_NODE={len(here)}, or trainer.n_gpus_per_node={len(here)}", fatal=False)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it is part of
        return False


def _missing(config: Any, module: str, package: str) -> Finding:
    what = f"{module} is not installed, and {_user(config, module)} imports it"
    return Finding(what, f"install {package} as {PAGE} says")


def _user(config: Any, module: str) -> str:
    if module == config.actor_rollout_ref.rollout.name:
        return f"actor_rollout_ref.rollout.name={module}"
    if module in _MEGATRON or "bridge" in module:
        return "model_engine=megatron"
    if module in _FLASH:
        return "actor_rollout_ref.model.use_remove_padding=True"
    return "verl's trainer"
