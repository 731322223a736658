"""The newest release of each host that the environment does not have, and how packages get into pytest's cache."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from interpreter import ROOT, WITHOUT_VLLM

from cw_plugin.hosts.host import OPENRLHF, SKYRL, SWIFT, TRL

CACHE = ROOT / ".pytest_cache" / "d"
# With each, what it imports that the environment has not, or has in a version that it does not take.
IN_SWIFT = ("trl==0.29.1", "datasets==4.8.4", "modelscope==1.40.2", "modelscope-hub==0.5.1", "json-repair==0.64.5",
            "dacite==1.9.2")  # fmt: skip
IN_SKYRL = ("skyrl-gym==0.4.0", "cloudpathlib==0.26.0", "zstandard==0.25.0", "--ignore-requires-python")
# OpenRLHF's wheels hold Python alone, and name one version of it.
OF_OPENRLHF = ("--only-binary=:all:", "--python-version=3.11")
DEEPSPEED = ("deepspeed==0.19.6", "hjson", "py-cpuinfo", "pylatexenc")


def installed(*wanted: str) -> Path:
    """The folder with these packages, without what they need.

    What comes as source is built in an environment of its own (``--use-pep517``), as examples/openrlhf/cpu/install.sh
    does it. pip's older way runs setup.py beside the packages of this environment, and DeepSpeed's fails beside torch.
    """
    folder = CACHE / wanted[0].replace("==", "-")
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "installed"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may want them, too
        if done.exists() and done.read_text() == " ".join(wanted):
            return folder
        options = ["-q", "--no-deps", "--use-pep517", "--upgrade", "--no-compile", "--target", folder]
        pip = [sys.executable, "-m", "pip", "install", *options, *wanted]
        subprocess.run(pip, env=os.environ | {"DS_BUILD_OPS": "0"}, check=True)
        done.write_text(" ".join(wanted))
    return folder


def host_folders(host: str, version: str | None = None) -> list[Path]:
    """What PYTHONPATH needs for a host's newest release, or for this one, with what stands in there for packages that
    need a GPU."""
    if host == "trl":
        return [installed(f"trl=={version or TRL.newest}"), WITHOUT_VLLM]
    if host == "swift":
        return [installed(f"ms-swift=={version or SWIFT.newest}", *IN_SWIFT), WITHOUT_VLLM]
    if host == "openrlhf":
        release = installed(f"openrlhf=={version or OPENRLHF.newest}", *OF_OPENRLHF)
        return [release, installed(*DEEPSPEED), ROOT / "examples" / "openrlhf" / "cpu"]
    if host == "skyrl":
        return [installed(f"skyrl=={version or SKYRL.newest}", *IN_SKYRL), ROOT / "examples" / "skyrl" / "cpu"]
    return []  # verl is in the environment
