"""The pull request to verl, on copies of the installed verl: what it mends, its tests and verl's, the plugin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from interpreter import ROOT, python
from patched_verl import PARTS, copy_verl

pytestmark = pytest.mark.slow  # no released verl has them

MENDED_BY_PART_ONE = {
    "test_v1_trainer_computes_optimal_token_baselines[optimal_token_baseline]",
    "test_v1_trainer_computes_optimal_token_baselines[tir_optimal_token_baseline]",
    "test_v1_trainer_computes_gdpo",
    "test_estimator_gets_what_it_declares_and_nothing_else",
    "test_other_estimators_see_all_outputs_and_where_sessions_end",
    *(
        f"test_outcome_estimators_score_the_final_output_of_a_session[{estimator}]"
        for estimator in ("gdpo", "gpg", "grpo_passk", "grpo_vectorized", "opo", "rloo", "rloo_vectorized")
    ),
    "test_outcome_estimators_score_the_final_output_of_a_session[reinforce_plus_plus_baseline]",
}


def run_verls_tests(copy: Path) -> dict[str, dict[str, str]]:
    """verl's CPU tests of the trainer as its CI selects them, without the plugin: by outcome names and messages."""
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
def as_released(tmp_path_factory) -> set[str]:
    """The tests that verl itself brings, all of which pass."""
    outcomes = run_verls_tests(copy_verl(tmp_path_factory.mktemp("released")))
    assert not outcomes["FAILED"] and not outcomes["ERROR"]
    return set(outcomes["PASSED"])


@pytest.fixture(scope="module")
def patched(tmp_path_factory) -> Path:
    return copy_verl(tmp_path_factory.mktemp("patched"), *PARTS)


def test_part_one_mends_what_its_tests_show_broken(as_released, tmp_path):
    before = run_verls_tests(copy_verl(tmp_path / "before", PARTS[0], include=("tests/*",)))
    assert before["FAILED"].keys() == MENDED_BY_PART_ONE and not before["ERROR"]
    of_otb = before["FAILED"]["test_v1_trainer_computes_optimal_token_baselines[optimal_token_baseline]"]
    assert "optimal baseline requires sum_pi_squared from actor" in of_otb
    assert "KeyError" in before["FAILED"]["test_v1_trainer_computes_gdpo"]

    after = run_verls_tests(copy_verl(tmp_path / "after", PARTS[0]))
    assert not after["FAILED"] and not after["ERROR"]
    assert after["PASSED"].keys() == before["PASSED"].keys() | MENDED_BY_PART_ONE
    assert after["PASSED"].keys() > as_released


def test_both_parts_pass_their_tests_and_verls(as_released, patched):
    outcomes = run_verls_tests(patched)
    assert not outcomes["FAILED"] and not outcomes["ERROR"]
    assert outcomes["PASSED"].keys() > as_released | MENDED_BY_PART_ONE
    assert "test_estimator_is_grpo_times_the_weights[True-group]" in outcomes["PASSED"]


def test_beside_a_verl_that_has_cw_grpo_the_plugin_stands_aside(patched):
    result = python(ROOT / "tests" / "native_and_plugin.py", path=(patched,), cwd=patched)
    assert result.returncode == 0, result.stderr[-6000:]
    assert "refused: cw_grpo reweights tokens as algorithm.adv_estimator or" in result.stdout
    assert result.stderr.count("is already registered") == 2
