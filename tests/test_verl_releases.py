"""Earlier releases of verl, as their wheels bring them: tests/verl_functions.py on each."""

from __future__ import annotations

import pytest
from interpreter import python

OLDEST = "0.7.1"  # in every run; the others with -m slow
RELEASES = {"0.9.0": ["legacy", "V1"], "0.8.0": ["legacy"], OLDEST: ["legacy"]}


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=[pytest.mark.slow] * (version != OLDEST)) for version in RELEASES]
)
def test_the_functions_of_a_released_verl(version, packages):
    result = python(
        *("-W", "ignore", "tests/verl_functions.py"),
        path=(packages(f"verl=={version}"),),
        timeout=400,
        VERL_USE_EXTERNAL_MODULES="cw_plugin.verl_integration.register",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"verl {version}\n" in result.stdout
    for trainer in RELEASES[version]:
        assert f"{trainer}: validate_config passes" in result.stdout
    assert "TaskRunner starts in a Ray worker" in result.stdout
