"""Earlier releases of verl, as their wheels bring them: tests/verl_functions.py on each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OLDEST = "0.7.1"  # in every run; the others with -m slow
RELEASES = {"0.9.0": ["legacy", "V1"], "0.8.0": ["legacy"], OLDEST: ["legacy"]}


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=[pytest.mark.slow] * (version != OLDEST)) for version in RELEASES]
)
def test_the_functions_of_a_released_verl(version, packages):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VERL_")}
    environment["VERL_USE_EXTERNAL_MODULES"] = "cw_plugin.verl_integration.register"
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (packages(f"verl=={version}"), TESTS.parent, TESTS)))
    command = [sys.executable, "-W", "ignore", TESTS / "verl_functions.py"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"verl {version}\n" in result.stdout
    for trainer in RELEASES[version]:
        assert f"{trainer}: validate_config passes" in result.stdout
    assert "TaskRunner starts in a Ray worker" in result.stdout
