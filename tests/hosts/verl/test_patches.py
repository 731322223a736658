"""The pull requests to verl, on copies of the installed verl: what each part mends, and the plugin beside each."""

import pytest

pytest.importorskip("verl")

import re
import subprocess
from pathlib import Path

from e2e import PARTS, copy_verl
from interpreter import python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # no released verl has them

# A test of each part that changes verl, which fails on the verl without it; of the last part, no test can be imported.
BROKEN = {
    "0002-otb-on-v1": "test_optimal_token_baseline[tir_optimal_token_baseline]",
    "0003-gdpo-on-v1": "test_each_component_is_normalized_by_itself[same_name]",
    "0004-named-tensors": "test_v1_fetches_the_tensors_that_an_estimator_names",
    "0005-estimator-metrics": "test_v1_trainer_logs_the_metrics",
    "0006-cw-grpo-estimator": None,
}


def run_verls_tests(copy: Path, *tests: str) -> tuple[set[str], set[str]]:
    """verl's CPU tests, without the plugin: names of those that passed, and of those that failed."""
    result = python(
        *("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-o", "python_files=*_on_cpu.py", *tests),
        path=(copy,),
        cwd=copy,
        timeout=500,
        VERL_USE_EXTERNAL_PLUGINS="none",
    )
    names = [re.findall(rf"^{word} \S+?\.py::(\S+)", result.stdout, re.M) for word in ("PASSED", "(?:FAILED|ERROR)")]
    assert any(names) or "cannot import name" in result.stdout, result.stdout[-6000:] + result.stderr[-6000:]
    return set(names[0]), set(names[1])


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """A copy of verl with the first parts."""
    copies: dict[int, Path] = {}

    def with_parts(count: int) -> Path:
        if count not in copies:
            copies[count] = copy_verl(tmp_path_factory.mktemp(f"parts{count}"), *PARTS[:count])
        return copies[count]

    return with_parts


@pytest.mark.parametrize("count, broken", [(0, {"test_later"}), (1, set())])
def test_the_first_part_mends_the_tests_after_those_of_the_registry(count, broken, prefix, tmp_path):
    copy = prefix(count)
    later = tmp_path / "test_later_on_cpu.py"
    later.write_text(
        "from verl.trainer.ppo import core_algos\n\ndef test_later():\n    core_algos.get_adv_estimator_fn('rloo')\n"
    )
    assert run_verls_tests(copy, "tests/trainer/ppo/test_core_algos_on_cpu.py", str(later))[1] == broken


@pytest.mark.parametrize("number", range(1, len(PARTS)), ids=[part.stem for part in PARTS[1:]])
def test_each_part_mends_what_its_tests_show_broken(number, prefix, tmp_path):
    changed = re.findall(r"^\+\+\+ b/(tests/\S+_on_cpu\.py)", PARTS[number].read_text(), re.MULTILINE)
    before = copy_verl(tmp_path, *PARTS[:number])
    subprocess.run(["git", "apply", "--include=tests/*", PARTS[number]], cwd=before, check=True)
    name = BROKEN[PARTS[number].stem]
    worked, broken = run_verls_tests(before, *changed)
    assert name in broken if name else not worked
    passed, failed = run_verls_tests(prefix(number + 1), *changed)
    assert not failed and len(passed) > 3 and (name in passed or not name)


# Weights with verl's own trainers, sessions of two outputs included, against the plain loop of reference.py.
WEIGHTS = """
import torch

from trainers import CW_GRPO, advantages, legacy_trainer, trained_on, trainer_batch, v1_trainer, weighted
from verl.trainer.ppo import core_algos

for make, outputs in ((v1_trainer, 1), (v1_trainer, 2), (legacy_trainer, 1)):
    trainer = make(CW_GRPO)
    data, keys = trainer_batch(outputs=outputs)
    keys = keys if make is v1_trainer else None
    plain = advantages("grpo", data, keys, trainer.config.algorithm)
    got, _ = trained_on(trainer, data, keys)
    torch.testing.assert_close(got.double(), weighted(data, plain), rtol=1e-5, atol=1e-6)
    assert not torch.equal(got, plain)
print(core_algos.get_adv_estimator_fn("cw_grpo").__module__)
"""


@pytest.mark.parametrize("count", range(len(PARTS) + 1))
def test_the_plugin_gives_the_same_weights_beside_each_part(count, prefix):
    result = python("-c", WEIGHTS, path=(prefix(count),), cwd=prefix(count))
    assert result.returncode == 0, result.stderr[-6000:]
    own = count == len(PARTS)
    assert ("verl.trainer.ppo.core_algos" if own else "cw_plugin.hosts.verl.estimator") in result.stdout
    assert result.stderr.count("is already registered") == own


def test_beside_a_verl_that_has_cw_grpo_the_plugin_stands_aside(prefix):
    code = """
from trainers import CW_GRPO, LOSS, legacy_trainer, v1_trainer, validate
from verl.trainer.ppo import core_algos
from cw_plugin.hosts.verl.hooks import require_hooks

for make in (v1_trainer, legacy_trainer):  # the hooks are in place, and do nothing
    trainer = make(CW_GRPO)
    require_hooks(trainer.config)
    assert "fit" not in vars(trainer) and "_compute_advantage" not in vars(trainer)
validate(CW_GRPO, "+algorithm.cw_grpo.record_every=5")  # the plugin refuses nothing, not even what it would not know
for attempt in (lambda: validate(CW_GRPO, LOSS), lambda: core_algos.get_policy_loss_fn("cw_grpo")):
    try:
        attempt()
    except ValueError as error:
        print(error)
"""
    copy = prefix(len(PARTS))
    result = python("-c", code, path=(copy,), cwd=copy)
    assert result.returncode == 0, result.stderr[-6000:]
    assert "Unsupported loss mode: cw_grpo" in result.stdout
