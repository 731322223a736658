"""The tests of SkyRL under its newest and its oldest release that fit.

Each release lies in a folder of its own, over the packages of the environment, with what it imports besides, and with
what examples/skyrl/cpu replaces: among it flash-attn. SkyRL 0.4.0 asks for Python 3.12; the classes that the tests call
run on 3.11, too.
"""

import pytest

pytest.importorskip("verl")

from host_packages import host_folders
from interpreter import python, run_tests

from cw_plugin.hosts.host import SKYRL


@pytest.mark.parametrize("version", [pytest.param(SKYRL.oldest, marks=pytest.mark.slow), SKYRL.newest])
def test_a_release_of_skyrl_passes_the_tests(version):
    run_tests("hosts/skyrl", f"--ignore={__file__}", path=host_folders("skyrl", version), HF_HUB_OFFLINE="1")


def test_an_environment_without_skyrl_is_refused():
    result = python("-m", "cw_plugin.hosts.skyrl", "skyrl.train.entrypoints.main_base")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.strip().endswith(f"has no skyrl; install skyrl {SKYRL.tested}")
