"""The pull request to verl, on copies of the installed verl: what it mends, its tests and verl's, the plugin."""

import re
from pathlib import Path

import pytest
from e2e import PARTS, copy_verl
from interpreter import python

pytestmark = pytest.mark.slow  # no released verl has them


def run_verls_tests(copy: Path) -> dict[str, dict[str, str]]:
    """verl's CPU tests of the trainer, without the plugin: by outcome names and messages."""
    result = python(
        *("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-o", "python_files=*_on_cpu.py", "tests/trainer"),
        path=(copy,),
        cwd=copy,
        VERL_USE_EXTERNAL_PLUGINS="none",
        COLUMNS="500",  # messages as a whole
    )
    outcomes: dict[str, dict[str, str]] = {"PASSED": {}, "FAILED": {}, "ERROR": {}}
    line = r"^(PASSED|FAILED|ERROR) \S+?\.py(?:::(\S+))?(.*)"
    for outcome, name, message in re.findall(line, result.stdout, re.MULTILINE):
        outcomes[outcome][name] = message
    assert outcomes["PASSED"], result.stdout[-6000:] + result.stderr[-6000:]
    return outcomes


@pytest.fixture(scope="module")
def patched(tmp_path_factory) -> Path:
    return copy_verl(tmp_path_factory.mktemp("patched"), *PARTS)


def test_part_one_mends_what_its_tests_show_broken_and_both_parts_pass(patched, tmp_path):
    released = run_verls_tests(copy_verl(tmp_path / "released"))
    assert not released["FAILED"] and not released["ERROR"]
    before = run_verls_tests(copy_verl(tmp_path / "before", PARTS[0], include=("tests/*",)))
    broken = before["FAILED"]
    assert len(broken) == 13 and not before["ERROR"]
    of_otb = broken["test_v1_trainer_computes_optimal_token_baselines[optimal_token_baseline]"]
    assert "optimal baseline requires sum_pi_squared from actor" in of_otb
    assert "KeyError" in broken["test_v1_trainer_computes_gdpo"]

    after, both = run_verls_tests(copy_verl(tmp_path / "after", PARTS[0])), run_verls_tests(patched)
    for outcomes in (after, both):
        assert not outcomes["FAILED"] and not outcomes["ERROR"]
        assert outcomes["PASSED"].keys() > released["PASSED"].keys() | broken.keys()
    assert after["PASSED"].keys() == before["PASSED"].keys() | broken.keys()
    assert "test_estimator_is_grpo_times_the_weights[True-group]" in both["PASSED"]


def test_beside_a_verl_that_has_cw_grpo_the_plugin_stands_aside(patched):
    """test_e2e.py trains on such a verl."""
    code = """
from trainers import CW_GRPO, LOSS, legacy_trainer, v1_trainer, validate
from verl.trainer.ppo import core_algos
from cw_plugin.verl_integration import run
from cw_plugin.verl_integration.hooks import hooks_of, require_hooks

native = core_algos.get_adv_estimator_fn("cw_grpo"), core_algos.get_policy_loss_fn("cw_grpo")
assert {function.__module__ for function in native} == {core_algos.__name__}
for make in (v1_trainer, legacy_trainer):  # the hooks are in place, and do nothing
    config = make(CW_GRPO).config
    require_hooks(config)
    assert len(hooks_of(config)) == 4 and run.current() is None
# The plugin refuses nothing: neither verl's own keys, nor its own, which the quickstart sets.
validate(CW_GRPO, "algorithm.cw_grpo.scope=batch", "+algorithm.cw_grpo.record_every=5")
try:
    validate(CW_GRPO, LOSS)
except ValueError as error:
    print(type(error), error)
"""
    result = python("-c", code, path=(patched,), cwd=patched)
    assert result.returncode == 0, result.stderr[-6000:]
    assert "<class 'ValueError'> cw_grpo reweights tokens as algorithm.adv_estimator or" in result.stdout  # verl's
    assert result.stderr.count("is already registered") == 2
