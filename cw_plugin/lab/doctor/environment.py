"""The checks of the environment: the packages that a run's engines import, and whether torch can use the GPUs.

verl imports most of these only in its workers, when the GPUs are already taken.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec

from omegaconf import DictConfig, OmegaConf

from cw_plugin.lab.doctor.finding import Finding

_VERSIONS = "the versions that fit are in verl's extras: verl[vllm,fsdp], verl[vllm,megatron]"

# Module -> the package to install.
_TRAINER = {"ray": "ray", "tensordict": "tensordict"}
_ROLLOUTS = {  # by rollout.name; of another one, which a user has registered, nothing is known
    "vllm": {"vllm": "vllm"},
    "sglang": {"sglang": "sglang"},
    "trtllm": {"tensorrt_llm": "tensorrt-llm"},
}
_V1 = {"transfer_queue": "TransferQueue"}
_FLASH = {"flash_attn": "flash-attn"}
_MEGATRON = {"megatron.core": "megatron-core", "transformer_engine.pytorch": "transformer-engine[pytorch]"}
_BRIDGE = {"megatron.bridge": "megatron-bridge"}
_OLD_BRIDGE = {"mbridge": "mbridge"}


def needed(config: DictConfig) -> dict[str, str]:
    """The modules that a run imports, and the package of each; none for a run on CPUs."""
    if config.trainer.device == "cpu":
        return {}
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    modules = _TRAINER | _ROLLOUTS.get(rollout.name, {})
    if OmegaConf.select(config, "trainer.use_v1"):
        modules |= _V1
    if config.actor_rollout_ref.actor.strategy == "megatron":
        modules |= _MEGATRON
        modules |= _OLD_BRIDGE if config.actor_rollout_ref.actor.megatron.vanilla_mbridge else _BRIDGE
    attention = (model.get("override_config") or {}).get("attn_implementation", "flash_attention_2")  # verl's default
    is_for_cuda = config.trainer.device == "cuda"  # on an NPU, verl takes the attention of its driver
    if is_for_cuda and attention == "flash_attention_2":  # for the rest, verl has functions of its own
        modules |= _FLASH
    return modules


def check_missing_packages(config: DictConfig) -> Iterator[Finding]:
    """Packages that are not installed; none is imported."""
    for module, package in needed(config).items():
        if not _is_installed(module):
            yield _missing(config, module, package)


def check_packages(config: DictConfig) -> Iterator[Finding]:
    """Packages that are not installed, or whose import fails: each is imported in a fresh process."""
    for module, package in needed(config).items():
        if not _is_installed(module):
            yield _missing(config, module, package)
            continue
        command = [sys.executable, "-c", f"import {module}"]
        result = subprocess.run(command, capture_output=True, text=True, cwd="/")
        if result.returncode:
            last_line = "".join(result.stderr.strip().splitlines()[-1:])
            problem = f"{module} is installed and cannot be imported ({last_line})"
            yield Finding(problem, f"install {package} for this torch and CUDA; {_VERSIONS}")


def check_gpus(config: DictConfig) -> Iterator[Finding]:
    """Whether torch can use the GPUs of this machine, and there are as many as the run wants."""
    number, wanted = _number_of_gpus(), config.trainer.n_gpus_per_node
    if config.trainer.device == "cpu" or number == 0:
        return
    yield from _check_torch()
    if number < wanted:
        problem = f"trainer.n_gpus_per_node={wanted}, and this machine has {number}"
        yield Finding(problem, f"trainer.n_gpus_per_node={number}", fatal=False)


def _number_of_gpus() -> int:
    """How many of NVIDIA's GPUs this machine has."""
    try:
        result = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return result.stdout.count("UUID: GPU-") if result.returncode == 0 else 0


def _check_torch() -> Iterator[Finding]:
    code = "import torch; print(torch.version.cuda, torch.cuda.is_available())"
    words = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    if len(words) != 2:
        return  # torch cannot be imported, which check_packages reports
    cuda, can_be_used = words
    if cuda == "None":
        problem = "torch is a build for CPUs, and this machine has a GPU"
        yield Finding(problem, "install torch for the CUDA that nvidia-smi prints")
    elif can_be_used == "False":
        problem = (
            f"torch is built for CUDA {cuda}, and cannot use the GPU: most often the driver is older than that CUDA"
        )
        yield Finding(problem, "a newer driver (nvidia-smi prints its CUDA), or a torch for the CUDA of this driver")


def _is_installed(module: str) -> bool:
    """Whether a module is there. Unlike find_spec of a dotted name, this imports no package that it is part of."""
    package, *parts = module.split(".")
    spec = importlib.util.find_spec(package)
    name = package
    for part in parts:
        if spec is None:
            return False
        name = f"{name}.{part}"
        spec = _find(name, spec.submodule_search_locations)
    return spec is not None


def _find(name: str, places: Sequence[str] | None) -> ModuleSpec | None:
    """What Python's import would find in these places; finders besides its own are of packages in editable mode."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]  # very old ones have none
    found = (finder.find_spec(name, places) for finder in finders)
    return next((spec for spec in found if spec is not None), None)


def _missing(config: DictConfig, module: str, package: str) -> Finding:
    problem = f"{module} is not installed, and {_user(config, module)} imports it"
    return Finding(problem, f"install {package}; {_VERSIONS}")


def _user(config: DictConfig, module: str) -> str:
    """What imports a module: a setting, or verl's trainer."""
    rollout = config.actor_rollout_ref.rollout.name
    if module in _ROLLOUTS.get(rollout, {}):
        return f"actor_rollout_ref.rollout.name={rollout}"
    if module in _MEGATRON | _BRIDGE | _OLD_BRIDGE:
        return "model_engine=megatron"
    if module in _FLASH:
        return "attn_implementation=flash_attention_2, verl's default,"
    return "verl's trainer"
