"""The installation: versions, and whether a fresh interpreter and Ray's workers find the plugin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.doctor.settings import rollout_engine
from cw_plugin.errors import how_to_install
from cw_plugin.verl_integration.options import estimator_and_loss, uses_v1
from cw_plugin.verl_integration.ray_cluster import find_cluster, require_listener

# The versions of examples/cpu/requirements.txt, with which the tests run.
TESTED = {
    "verl": "0.9.1",
    "torch": "2.13.0",
    "transformers": "5.10.4",
    "ray": "2.60.0",
    "TransferQueue": "0.1.11",
    "vllm": "0.27.1",
}

# verl 0.9.1's own list for GPUs, its extra [vllm]; the CPU builds that the tests run with are newer.
VERLS = {"torch": "2.11.0", "transformers": "5.9.0", "vllm": "0.24.0"}

# Prints "ok", or what is wrong; runs in a separate interpreter. USE_V1 is filled in.
_PROBE = """
try:
    import verl
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    get_adv_estimator_fn("cw_grpo"), get_policy_loss_fn("cw_grpo")
    from cw_plugin.verl_integration.hooks import require_hooks
    from omegaconf import OmegaConf
    require_hooks(OmegaConf.create({"trainer": {"use_v1": USE_V1}}))
    print("cw_grpo doctor: ok")
except Exception as error:
    print(f"cw_grpo doctor: {type(error).__name__}: {' '.join(str(error).split())}")
"""
WHY = "verl would not know cw_grpo there, or this package does not fit that verl"
INSTALL = f"{how_to_install()}, there, beside verl; and leave VERL_USE_EXTERNAL_PLUGINS unset"
OWN_RAY = "++ray_kwargs.ray_init.address=local, for a Ray of the run's own"


def _probe(config: Any) -> str:
    return _PROBE.replace("USE_V1", str(uses_v1(config)))


def trainer_and_hooks(config: Any) -> str:
    """Which trainer of verl a run uses, and which functions of verl this package hooks for it."""
    trainer = "V1 trainer" if uses_v1(config) else "legacy trainer, RayPPOTrainer"
    if not any(estimator_and_loss(config)):
        return f"verl's {trainer}; this run does not use cw_grpo, so no hook acts"
    from cw_plugin.verl_integration.hooks import hooks_of

    return f"verl's {trainer}; cw_plugin hooks {', '.join(hook.function for hook in hooks_of(config))}"


def versions(config: Any) -> Iterator[Finding]:
    """Compare the installed versions with those that the tests run with, and that verl requires."""
    for package, tested in TESTED.items():
        if package == "vllm" and rollout_engine(config) not in ("vllm", None):
            continue
        verls = VERLS.get(package)
        fix = f"pip install {package}=={tested}" if verls is None else f"pip install 'verl[vllm]=={TESTED['verl']}'"
        try:
            found = version(package)
        except PackageNotFoundError:
            yield Finding("versions", f"{package} is not installed", "verl's trainer needs it", fix)
            continue
        if found.split("+")[0] not in (tested, verls):
            yield Finding(
                "versions",
                f"{package} is {found}; the tests run with {tested}" + (f", verl requires {verls}" if verls else ""),
                "this version is not tested end to end",
                f"{fix}, or run the tests with {found}",
                fatal=False,
            )
    places = (spec.submodule_search_locations or ()) if (spec := find_spec("trl")) else ()
    for folder in map(Path, places):
        if not (folder / "experimental" / "ppo").exists() and not list(folder.glob("models/*value_head.py")):
            yield Finding(
                "versions",
                f"the TRL in {folder} has no AutoModelForCausalLMWithValueHead",
                "verl imports that class wherever TRL is installed, and would stop when it loads the model",
                "pip uninstall trl; it needs an environment of its own",
            )


def fresh_interpreter(config: Any) -> Iterator[Finding]:
    """What ``python -m verl.trainer.main_ppo`` would find."""
    result = subprocess.run([sys.executable, "-c", _probe(config)], capture_output=True, text=True, cwd="/")
    answer = _answer(result.stderr + result.stdout)
    if answer != "ok":
        yield Finding("plugin", f"a fresh {sys.executable} does not find the plugin: {answer}", WHY, INSTALL)


def ray_cluster(config: Any) -> Iterator[Finding]:
    """The cluster that main_ppo would join: whether it answers, and accepts the arguments of ray.init."""
    found = find_cluster(config)
    if found is None:
        return
    address, source = found
    try:
        require_listener(address)
    except OSError:  # ConnectionError is one
        yield _no_cluster(address, source)
        return
    given = " and ".join(key for key in ("num_cpus", "num_gpus") if config.ray_kwargs.ray_init.get(key) is not None)
    if given:
        yield Finding(
            "ray",
            f"ray_kwargs.ray_init sets {given}, and {source} names a running Ray cluster, {address}",
            "Ray refuses to join a cluster with these arguments",
            f"{OWN_RAY}; or leave {given} out to join the cluster",
        )


def _no_cluster(address: str, source: str) -> Finding:
    return Finding(
        "ray",
        f"{source} names a Ray cluster, {address}, and nobody answers there",
        "main_ppo would wait for minutes, and then stop",
        f"{OWN_RAY}; or start the cluster again",
    )


def ray_workers(config: Any) -> Iterator[Finding]:
    """Run the probe in a worker on each node, of the cluster that main_ppo would join, or of a new one."""
    found = find_cluster(config)
    try:
        require_listener(found[0] if found else "")
    except OSError:
        return  # reported by ray_cluster(); Ray itself would wait for minutes, and then end this process
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.is_initialized()
    if not here:
        try:
            ray.init(address=found[0] if found else "local", log_to_driver=False, logging_level="ERROR")
        except ConnectionError:  # RAY_ADDRESS=auto, and no cluster
            if found is None:
                raise
            yield _no_cluster(*found)
            return

    code = _probe(config)

    @ray.remote(num_cpus=0)
    def probe() -> str:
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        return result.stderr + result.stdout

    try:
        for node in ray.nodes():
            if node["Alive"]:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                output = ray.get(probe.options(scheduling_strategy=strategy).remote())
                answer = _answer(output)
                if answer != "ok":
                    yield Finding(
                        "plugin",
                        f"a Ray worker on {node['NodeManagerAddress']} does not find the plugin: {answer}",
                        WHY,
                        f"{INSTALL}; restart a cluster that is already running",
                    )
    finally:
        if not here:
            ray.shutdown()


def _answer(output: str) -> str:
    """The line that the probe printed, among those that importing verl prints; without it, the last line."""
    lines = output.strip().splitlines() or ["it ended without output"]
    said = [line for line in lines if line.startswith("cw_grpo doctor: ")]
    return (said or lines)[-1].removeprefix("cw_grpo doctor: ")
