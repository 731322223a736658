"""The tests of the Tinker cookbook, which lies in a folder over the packages of the environment."""

from interpreter import run_tests

from cw_plugin.hosts.host import TINKER_COOKBOOK

BESIDES = ("tinker==0.38.0", "chz==0.4.0", "blobfile==3.3.0", "distro==1.9.0", "lxml==6.1.3", "termcolor==3.3.0")


def test_a_release_of_the_cookbook_passes_the_tests(packages):
    run_tests("hosts/tinker/test_tinker.py", path=(packages(f"tinker-cookbook=={TINKER_COOKBOOK}", *BESIDES),))
