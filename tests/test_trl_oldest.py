"""The same tests under the oldest TRL that is supported, laid over the environment of the newest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trl

from cw_plugin.trl_integration.checks import TESTED

ROOT = Path(__file__).parent.parent


def test_the_versions_that_are_tested_are_those_that_are_named():
    (oldest,) = re.findall(r'"trl>=([\d.]+),<2"', (ROOT / "pyproject.toml").read_text())
    pinned = re.findall(r"^trl==([\d.]+)", (ROOT / "examples/cpu/requirements.txt").read_text(), re.MULTILINE)
    assert oldest == TESTED[0] and TESTED[1] in pinned and trl.__version__ in (*pinned, TESTED[0])


@pytest.mark.timeout(1200)
def test_the_oldest_trl_passes_the_same_tests():
    folder = ROOT / ".cache" / f"trl-{TESTED[0]}"
    if not (folder / "trl").exists():  # a wheel of Python alone, whose dependencies are those of the newest
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*command, f"trl=={TESTED[0]}"], check=True, timeout=300)
    examples = ("recipe_composes_to_the_papers_values", "quickstart_trains_and_reports")
    names = ["test_trl.py", *(f"test_trl_examples.py::test_the_{name}" for name in examples)]
    tests = [ROOT / "tests" / name for name in names]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1150,
    )
    assert result.returncode == 0, result.stdout[-5000:]
