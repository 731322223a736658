"""The newest release of TRL that is supported passes all tests of TRL, and the others the weights' tests.

Each release lies in a folder of its own, over the packages of the environment. It is not in the environment, because
verl 0.9.1 imports a class from whatever TRL is installed, and newer releases do not have that class any more.
"""

import pytest

pytest.importorskip("verl")

import re
import sys

from interpreter import ROOT, WITHOUT_VLLM, run_tests

from cw_plugin.hosts.host import TRL

# Of each minor release the last one, and the oldest of all. The nightly run tries them all, the default run both ends.
# TRL 1.15 computes log-probs by a Triton kernel, which needs a GPU, so that TRL's own trainer fails on a CPU.
RELEASES = [
    "0.29.0", "0.29.1", "1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.1", "1.6.0", "1.7.1", "1.8.0", "1.9.2",
    "1.10.0", "1.11.0", "1.12.0", "1.13.0", "1.14.2", "1.16.0",
]  # fmt: skip
LAST_FOR_PYTHON_3_10 = "1.14.2"
NEWEST = TRL.newest if sys.version_info >= (3, 11) else LAST_FOR_PYTHON_3_10
BETWEEN = RELEASES[1 : RELEASES.index(NEWEST)]
EVERY = [
    "hosts/trl",
    f"--ignore={__file__}",
    "lab/rewards/test_rewards_of_trl.py",
    "examples/test_trl_examples.py",
    "examples/test_boundary.py",
    "examples/test_study.py::test_models_differ_in_width_alone",  # the others need no TRL
]
WEIGHTS = [
    "hosts/trl/test_trl_weights.py::test_every_row_at_the_loss_has_the_weights_of_its_whole_group",
    "hosts/trl/test_trl_weights.py::test_responses_that_a_function_leaves_unscored_in_two_processes_that_share_a_group",
    "hosts/trl/test_trl_command.py",
    "hosts/trl/test_trl_images.py::test_images_reach_the_forward_pass_of_the_weights",
    "hosts/trl/test_trl_refused.py::test_a_trainer_that_gets_its_advantages_elsewhere_is_refused",
]


def test_the_versions_that_are_tested_are_those_that_are_named():
    ((oldest, left_out),) = re.findall(r'"trl>=([\d.]+),!=([\d.]+)\.\*,<2"', (ROOT / "pyproject.toml").read_text())
    assert (oldest, left_out) == (TRL.oldest, TRL.left_out) and [TRL.oldest, TRL.newest] == RELEASES[
        :: len(RELEASES) - 1
    ]
    assert not any(version.startswith(f"{TRL.left_out}.") for version in RELEASES)


@pytest.mark.parametrize(
    ("version", "tests", "besides"),
    [
        pytest.param(NEWEST, EVERY, [WITHOUT_VLLM], id="newest"),
        pytest.param(TRL.oldest, WEIGHTS, [WITHOUT_VLLM], id="oldest"),
        *(pytest.param(version, WEIGHTS, [WITHOUT_VLLM], id=version, marks=pytest.mark.slow) for version in BETWEEN),
        pytest.param(NEWEST, ["-m", "slow", *EVERY], [], id="slow", marks=pytest.mark.slow),
    ],
)
def test_a_release_of_trl_passes_the_tests(version, tests, besides, packages):
    run_tests(*tests, path=(packages(f"trl=={version}"), *besides))


@pytest.mark.slow
def test_axolotls_trainers_pass_the_tests(packages):
    """Axolotl asks for Python 3.12; the classes that the tests call run on 3.11, too."""
    besides = ("addict==2.4.0", "posthog==7.91.1", "distro==1.9.0", "evaluate==0.4.6", "colorama==0.4.6")
    release = packages("axolotl==0.21.0", "trl==1.14.1", *besides, "--ignore-requires-python")
    run_tests("hosts/trl/test_axolotl.py", path=(release, WITHOUT_VLLM))
