"""The pull requests to verl, on copies of the installed verl: what each part mends, and the plugin beside each. And the
recipe for verl-recipe."""

import pytest

pytest.importorskip("verl")

import re
import subprocess
from pathlib import Path

from e2e import PARTS, assert_logged, assert_right, cluster, copy_verl, recipe_environment, training_steps
from interpreter import ROOT, bash, python, run_tests

pytestmark = pytest.mark.slow  # no released verl has them

# A test of each part, which fails on the verl without it.
BROKEN = {
    "0001-plugin-guide": "test_plugin_that_fails_to_load_is_named_and_the_others_are_loaded",
    "0002-otb-on-v1": "test_optimal_token_baseline[tir_optimal_token_baseline]",
    "0003-gdpo-on-v1": "test_gdpo_normalizes_each_component_by_itself[same_name]",
}


@pytest.fixture(scope="module")
def ray_address():
    with cluster("--num-cpus=16") as (address, _):  # verl's tests hold several that do nothing
        yield address


@pytest.fixture
def run_verls_tests(ray_address):
    """verl's CPU tests, without the plugin: names of those that passed, and of those that failed."""

    def run(copy: Path, *tests: str) -> tuple[set[str], set[str]]:
        result = python(
            *("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-o", "python_files=*_on_cpu.py", *tests),
            path=(copy,),
            cwd=copy,
            VERL_USE_EXTERNAL_PLUGINS="none",
            RAY_ADDRESS=ray_address,
        )
        outcomes = ("PASSED", "(?:FAILED|ERROR)")
        names = [re.findall(rf"^{word} \S+?\.py::(\S+)", result.stdout, re.MULTILINE) for word in outcomes]
        assert any(names), result.stdout[-6000:] + result.stderr[-6000:]
        return set(names[0]), set(names[1])

    return run


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """A copy of verl with the first parts."""
    copies: dict[int, Path] = {}

    def with_parts(count: int) -> Path:
        if count not in copies:
            copies[count] = copy_verl(tmp_path_factory.mktemp(f"parts{count}"), *PARTS[:count])
        return copies[count]

    return with_parts


@pytest.mark.parametrize("count, broken", [(1, {"test_later"}), (2, set())])
def test_the_second_part_mends_the_tests_after_those_of_the_registry(count, broken, prefix, run_verls_tests, tmp_path):
    copy = prefix(count)
    later = tmp_path / "test_later_on_cpu.py"
    later.write_text(
        "from verl.trainer.ppo import core_algos\n\ndef test_later():\n    core_algos.get_adv_estimator_fn('rloo')\n"
    )
    assert run_verls_tests(copy, "tests/trainer/ppo/test_core_algos_on_cpu.py", str(later))[1] == broken


@pytest.mark.parametrize("number", range(len(PARTS)), ids=[part.stem for part in PARTS])
def test_each_part_mends_what_its_tests_show_broken(number, prefix, run_verls_tests, tmp_path):
    changed = re.findall(r"^\+\+\+ b/(tests/\S+_on_cpu\.py)", PARTS[number].read_text(), re.MULTILINE)
    before = copy_verl(tmp_path, *PARTS[:number])
    subprocess.run(["git", "apply", "--include=tests/*", PARTS[number]], cwd=before, check=True)
    name = BROKEN[PARTS[number].stem]
    _, broken = run_verls_tests(before, *changed)
    assert name in broken
    passed, failed = run_verls_tests(prefix(number + 1), *changed)
    assert not failed and name in passed


@pytest.mark.parametrize("count", range(len(PARTS) + 1))
def test_the_plugin_gives_the_same_weights_beside_each_part(count, prefix):
    tests = "hosts/verl/test_verl_advantages.py::test_a_trainer_trains_on_grpo_times_the_reference_weights"
    run_tests(tests, path=(prefix(count),))


# What #7473 does, by its description: an estimator gets batch and non_tensor_batch if its signature takes them.
FOR_GDPO = """        if adv_estimator in (AdvantageEstimator.GDPO, "gdpo"):
            adv_kwargs["non_tensor_batch"] = data.non_tensor_batch
            adv_kwargs["batch"] = data.batch
"""
FOR_ALL = """        adv_kwargs["non_tensor_batch"] = data.non_tensor_batch
        adv_kwargs["batch"] = data.batch
"""
IN_TWENTY_LINES = """
import torch
from trainers import CW_GRPO, legacy_trainer, trained_on, trainer_batch, v1_trainer
from verl.trainer.ppo import core_algos

@core_algos.register_adv_est("mine")
def mine(token_level_rewards, response_mask, index, batch, **kwargs):
    advantages, _ = core_algos.compute_grpo_outcome_advantage(token_level_rewards, response_mask, index)
    weighted = torch.zeros_like(advantages)
    for uid in set(index):
        rows = torch.tensor(index == uid)
        mask = response_mask[rows].bool()
        log_probs, of_tokens = batch["old_log_probs"][rows][mask].double(), advantages[rows][mask]
        covariances = (log_probs - log_probs.mean()) * (of_tokens.double() - of_tokens.double().mean())
        sigma = covariances.std(correction=0)
        z = (covariances / sigma).float() if sigma > 0 else torch.zeros_like(of_tokens)
        w = torch.exp(-(z**2) / 2)
        of_rows = torch.zeros(mask.shape)
        of_rows[mask] = w * (len(w) / w.sum(dtype=torch.float64)) * of_tokens
        weighted[rows] = of_rows
    return weighted, weighted

for make in (v1_trainer, legacy_trainer):
    data, keys = trainer_batch()
    keys = keys if make is v1_trainer else None
    expected, _ = trained_on(make(CW_GRPO), data, keys)
    got, _ = trained_on(make("algorithm.adv_estimator=mine"), data, keys)
    print((got - expected).abs().max().item())
"""


def test_with_7473_an_estimator_of_twenty_lines_gives_the_plugins_advantages(tmp_path):
    copy = copy_verl(tmp_path)
    trainer = copy / "verl" / "trainer" / "ppo" / "ray_trainer.py"
    assert FOR_GDPO in trainer.read_text()
    trainer.write_text(trainer.read_text().replace(FOR_GDPO, FOR_ALL))
    result = python("-c", IN_TWENTY_LINES, path=(copy,), cwd=copy)
    assert result.returncode == 0, result.stderr[-6000:]
    assert re.findall(r"^\d\S*$", result.stdout, re.MULTILINE) == ["0.0", "0.0"]


def test_the_recipe_trains_on_the_weights(tmp_path):
    """Its own script, with the CPU's overlay and a smaller batch."""
    overlay = "source examples/cpu/overlay.sh"
    script = 'bash patches/verl-recipe/cw_grpo/run_r1_distill_qwen_1.5b.sh "${EXTRA[@]}" "$@"'
    smaller = (
        *("data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=4"),
        *("data.max_prompt_length=192", "data.max_response_length=64"),
        *("trainer.save_freq=-1", f"trainer.default_local_dir={tmp_path}"),
    )
    metrics = tmp_path / "metrics.jsonl"
    env = recipe_environment(tmp_path, VERL_FILE_LOGGER_PATH=str(metrics))
    bash("cpu/data.sh", **env)
    command = ["bash", "-c", f"{overlay} && {script}", "bash", *smaller]
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    records = training_steps(metrics)
    assert len(records) == 2
    assert_logged(records)
    assert_right(tmp_path)
