"""The tests of SkyRL under its newest release.

It lies in a folder of its own, over the packages of the environment, with skyrl-gym, and with what examples/skyrl/cpu
replaces: among it flash-attn.
"""

import pytest
from interpreter import ROOT, python, run_tests

from cw_plugin.hosts.host import SKYRL

pytestmark = pytest.mark.timeout(1500)  # with the download


def test_a_release_of_skyrl_passes_the_tests(packages):
    release = packages(f"skyrl=={SKYRL.newest}", "skyrl-gym==0.4.0")
    cpu = ROOT / "examples" / "skyrl" / "cpu"
    run_tests("hosts/skyrl/test_skyrl.py", path=(release, cpu), HF_HUB_OFFLINE="1")


def test_an_environment_without_skyrl_is_refused():
    result = python("-c", "import cw_plugin.hosts.skyrl")
    error = result.stderr.strip().splitlines()[-1]
    assert (
        result.returncode == 1
        and "No module named 'skyrl'" in error
        and error.endswith(f"install skyrl {SKYRL.newest}")
    )
