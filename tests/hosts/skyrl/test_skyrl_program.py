"""``python -m cw_plugin.hosts.skyrl PROGRAM``, and ``trainer.override_entrypoint``: which programs get the method.

test_skyrl_releases.py runs this file.
"""

import pytest

pytest.importorskip("skyrl")

import subprocess
from pathlib import Path

import torch
from interpreter import python
from skyrl.train.trainer import RayPPOTrainer
from skyrl_trainers import SETTINGS, expected, rollouts, settings, train, trainer_of

MAIN_BASE, OURS = "skyrl.train.entrypoints.main_base", "cw_plugin.hosts.skyrl"
OVERRIDE = f"trainer.override_entrypoint={OURS}"
ARCTIC = "trainer.override_entrypoint=integrations.arctic_rl.entrypoint"


def start(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a command prints, with the settings of the tests."""
    names = ("export_path", "ckpt_path", "log_path")
    given = SETTINGS | {"trainer.algorithm.grpo_norm_by_std": "false"} | {f"trainer.{name}": folder for name in names}
    environment = {"OUT": str(folder / "out"), "HF_HUB_OFFLINE": "1"} | environment
    return python("-m", *words, *(f"{name}={value}" for name, value in given.items()), **environment)


@pytest.mark.parametrize(("scope", "where"), [("group", "in a worker of Ray"), ("batch", "here")])
def test_a_program_of_its_own_trains_on_the_weights(tmp_path, scope, where):
    result = start(tmp_path, OURS, "skyrl_program", CW_GRPO_SCOPE=scope, WHERE=where)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    found = torch.load(tmp_path / "out", weights_only=False)
    changed = {"trainer.algorithm.grpo_norm_by_std": "false"}
    plain = train(trainer_of(RayPPOTrainer, settings(tmp_path / "plain", **changed)), *rollouts())
    weighted, sigma = expected(plain, rollouts()[1], scope)
    # The program halves its rewards.
    torch.testing.assert_close(2 * found["advantages"].double(), weighted, atol=1e-6, rtol=1e-5)
    assert found["metrics"]["cw_grpo/sigma"] == pytest.approx(sigma / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((OURS, MAIN_BASE, ARCTIC), f"{ARCTIC} names another program than {MAIN_BASE}, and one alone can run; remove"),
        ((MAIN_BASE, OVERRIDE, ARCTIC), f"{ARCTIC} names another program than"),
        ((OURS, "skyrl_program", "trainer.algorithm.advantage_estimator=gae"), "gae has no prompt groups"),
        ((MAIN_BASE, OVERRIDE, "trainer.algorithm.advantage_estimator=gae"), "gae has no prompt groups"),
        ((OURS, MAIN_BASE, OVERRIDE, "trainer.algorithm.advantage_estimator=gae"), "gae has no prompt groups"),
        ((OURS, "examples.main_nothing"), "there is no module examples.main_nothing"),
        ((OURS, "nowhere.main_nothing"), "there is no module nowhere.main_nothing"),
        ((OURS, "--help"), "name the program first"),
        ((OURS, "trainer.epochs=1"), f"name the program first: python -m {OURS} {MAIN_BASE}"),
        ((OURS,), "name the program first"),
    ],
)
def test_a_command_that_cannot_train_is_one_sentence_before_ray_starts(tmp_path, words, said):
    result = start(tmp_path, *words)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("cw_grpo: ")]
    assert (result.returncode, said in line) == (1, True), line
    assert "Traceback" not in result.stderr and "Ray" not in result.stderr
