"""The tests of Trinity-RFT under the release that fits, which lies in a folder over the packages of the environment."""

from interpreter import python, run_tests

from cw_plugin.hosts.host import TRINITY


def test_a_release_of_trinity_passes_the_tests(packages):
    release = packages(f"trinity-rft=={TRINITY.newest}")
    run_tests("hosts/trinity", f"--ignore={__file__}", path=(release,), HF_HUB_OFFLINE="1")


def test_an_environment_without_trinity_is_refused():
    result = python("-c", "import cw_plugin.hosts.trinity")
    error = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 1 and "No module named 'trinity'" in error
    assert error.endswith(f"install trinity-rft {TRINITY.tested}")
