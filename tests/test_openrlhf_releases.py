"""The tests of OpenRLHF under the oldest and the newest release that fit, and one that does not.

Each release lies in a folder of its own, over the packages of the environment, with what it imports besides: the real
DeepSpeed, and the stand-in for flash-attn of examples/openrlhf/cpu.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cw_plugin.openrlhf_integration import TESTED

ROOT = Path(__file__).parent.parent
NEEDS = ["deepspeed==0.19.6", "hjson", "py-cpuinfo", "pylatexenc"]  # builds nothing that runs on a GPU


def folder_with(name: str, *packages: str) -> Path:
    folder = ROOT / ".cache" / name
    if not (folder / packages[0].partition("==")[0]).exists():
        # OpenRLHF's wheels hold Python alone, and name one version of it.
        any_python = ["--only-binary=:all:", "--python-version", "3.11"] if name != "openrlhf-needs" else []
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run(
            [*command, *any_python, *packages], env={**os.environ, "DS_BUILD_OPS": "0"}, check=True, timeout=300
        )
    return folder


def run(version: str, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    folders = [folder_with(f"openrlhf-{version}", f"openrlhf=={version}"), folder_with("openrlhf-needs", *NEEDS)]
    path = [*folders, ROOT, ROOT / "examples" / "openrlhf" / "cpu", os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=550,
    )


@pytest.mark.parametrize("version", TESTED)
def test_a_release_of_openrlhf_passes_the_tests(version):
    result = run(version, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "tests" / "test_openrlhf.py")
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert re.search(r"\d+ passed", result.stdout)


def test_a_release_of_another_shape_is_refused():
    code = """
from cw_plugin import openrlhf_integration
openrlhf_integration.install()
import openrlhf.trainer.ppo_utils.experience_maker
"""
    result = run("0.8.11", "-c", code)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == (
        "cw_plugin.errors.HostError: this OpenRLHF cannot be served, because RemoteExperienceMaker has no "
        f"compute_advantages_and_returns(self, experiences); install openrlhf {TESTED[0]} to {TESTED[1]}"
    )


def test_the_launcher_refuses_an_unknown_option_before_anything_starts():
    result = run(TESTED[1], "-m", "cw_plugin.openrlhf_integration", CW_GRPO_KERNAL="none")
    assert result.returncode == 1 and result.stderr.startswith("cw_grpo: kernal is not an option")


def test_the_launcher_fails_if_rays_workers_have_no_hook():
    """A Ray of its own, in which another hook stands in the place of ours."""
    code = """
import sys
from cw_plugin import openrlhf_integration
openrlhf_integration.HOOK = "os.getpid"
sys.argv[1:] = "--algo.advantage.estimator group_norm --algo.kl.init_coef 0 --reward.remote_url none.py".split()
sys.argv += "--rollout.n_samples_per_prompt 8 --actor.num_gpus_per_node 1".split()
openrlhf_integration.main()
"""
    result = run(TESTED[1], "-c", code)
    assert result.returncode == 1
    assert "cw_grpo: Ray's workers did not run os.getpid, so they would train plain GRPO" in result.stderr
