"""The installation: versions, and whether a fresh interpreter and Ray's workers find the plugin."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cw_plugin.doctor.finding import Finding
from cw_plugin.doctor.settings import rollout_engine
from cw_plugin.errors import how_to_install

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

# Says "ok", or what is wrong; in an interpreter of its own.
PROBE = """
try:
    import verl
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    get_adv_estimator_fn("cw_grpo"), get_policy_loss_fn("cw_grpo")
    from cw_plugin.verl_integration.hooks import require_hooks
    require_hooks()
    print("cw_grpo doctor: ok")
except Exception as error:
    print(f"cw_grpo doctor: {type(error).__name__}: {' '.join(str(error).split())}")
"""
WHY = "verl would not know cw_grpo there, or the hook would not fit"
INSTALL = f"{how_to_install()}, there, beside verl 0.9.1; leave VERL_USE_EXTERNAL_PLUGINS unset (or auto)"


def versions(config: Any) -> Iterator[Finding]:
    """Against those that the tests run with, and that verl asks for."""
    for package, tested in TESTED.items():
        if package == "vllm" and rollout_engine(config) not in ("vllm", None):
            continue
        verls = VERLS.get(package)
        mend = f"pip install {package}=={tested}" if verls is None else f"pip install 'verl[vllm]=={TESTED['verl']}'"
        try:
            found = version(package)
        except PackageNotFoundError:
            yield Finding("versions", f"{package} is not installed", "verl's trainer needs it", mend)
            continue
        if found.split("+")[0] not in (tested, verls):
            yield Finding(
                "versions",
                f"{package} is {found}; the tests run with {tested}" + (f", verl asks for {verls}" if verls else ""),
                "other versions may work, and nobody has tried"
                if package != "verl"
                else "the hooks fit one shape of verl",
                f"{mend}, or run the tests with {found}",
                fatal=False,
            )


def fresh_interpreter(config: Any) -> Iterator[Finding]:
    """What ``python -m verl.trainer.main_ppo`` would find."""
    result = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, cwd="/")
    answer = _answer(result.stdout) or (result.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    if answer != "ok":
        yield Finding("plugin", f"a fresh {sys.executable} does not find the plugin: {answer}", WHY, INSTALL)


def ray_workers(config: Any) -> Iterator[Finding]:
    """A worker on each node of the running cluster (RAY_ADDRESS, or one started on this machine), else of a new one."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.is_initialized()
    if not here:
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            knock(address)  # Ray itself waits for minutes, and then ends the process
            ray.init(log_to_driver=False, logging_level="ERROR")  # finds the cluster that main_ppo would find
        except OSError:  # ConnectionError is one
            yield Finding(
                "ray",
                f"there is no Ray cluster at RAY_ADDRESS={address}",
                "main_ppo would not start",
                "ray start --head on that node, or unset RAY_ADDRESS",
            )
            return

    @ray.remote(num_cpus=0)
    def probe() -> str:
        result = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
        return result.stdout + result.stderr

    try:
        for node in ray.nodes():
            if node["Alive"]:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                output = ray.get(probe.options(scheduling_strategy=strategy).remote())
                answer = _answer(output) or (output.strip().splitlines() or ["it ended without a word"])[-1]
                if answer != "ok":
                    yield Finding(
                        "plugin",
                        f"a Ray worker on {node['NodeManagerAddress']} does not find the plugin: {answer}",
                        WHY,
                        f"{INSTALL}; a cluster that runs has to be restarted",
                    )
    finally:
        if not here:
            ray.shutdown()


def knock(address: str) -> None:
    """Raise OSError if nobody listens at ``host:port`` (``ray://`` or not); other addresses are Ray's affair."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()


def _answer(output: str) -> str:
    """What PROBE said, among the lines that verl's import prints."""
    said = [line for line in output.splitlines() if line.startswith("cw_grpo doctor: ")]
    return said[-1].removeprefix("cw_grpo doctor: ") if said else ""
