"""The tests of SkyRL under its newest and its oldest release that fit.

Each release lies in a folder of its own, over the packages of the environment, with what it imports besides, and with
what examples/skyrl/cpu replaces: among it flash-attn. SkyRL 0.4.0 asks for Python 3.12; the classes that the tests call
run on 3.11, too.
"""

import pytest

pytest.importorskip("verl")

from interpreter import ROOT, python, run_tests

from cw_plugin.hosts.host import SKYRL

pytestmark = pytest.mark.timeout(1500)  # with the download


@pytest.mark.parametrize("version", [pytest.param(SKYRL.oldest, marks=pytest.mark.slow), SKYRL.newest])
def test_a_release_of_skyrl_passes_the_tests(version, packages):
    besides = ("skyrl-gym==0.4.0", "cloudpathlib==0.26.0", "zstandard==0.25.0")
    release = packages(f"skyrl=={version}", *besides, "--ignore-requires-python")
    cpu = ROOT / "examples" / "skyrl" / "cpu"
    run_tests("hosts/skyrl", f"--ignore={__file__}", path=(release, cpu), HF_HUB_OFFLINE="1")


def test_an_environment_without_skyrl_is_refused():
    result = python("-c", "from cw_plugin.hosts.skyrl import CWGRPOTrainer")
    error = result.stderr.strip().splitlines()[-1]
    assert (
        result.returncode == 1
        and "No module named 'skyrl'" in error
        and error.endswith(f"install skyrl {SKYRL.tested}")
    )
