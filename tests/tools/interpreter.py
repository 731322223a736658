"""Starts Python, the scripts and the command, in this environment or with another release; and waits."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from cw_plugin.lab.cli import app

ROOT = Path(__file__).parents[2]
COPIES = Path(os.environ.get("CW_GRPO_DATA", ROOT.parent / "shared" / "data"))  # of the benchmarks
# The scripts of examples/ that train, from there.
THAT_TRAIN = sorted(
    str(path.relative_to(ROOT / "examples"))
    for path in (ROOT / "examples").rglob("*.sh")
    if "/supervised.sh" in path.read_text() and path.name != "supervised.sh"
)
# Seconds for a run of verl to reach its second step, which takes up to 60 on two quiet cores: at load 10, five times as
# many. What else a test waits for takes less. No test is faster or slower for it, unless something hangs.
PATIENCE = 600

WITHOUT_VLLM = Path(__file__).parent / "without_vllm"


def python(
    *arguments: object, path: Sequence[Path] = (), cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What Python prints with these arguments. It imports from ``path``, then from this repository and its tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    folders = [*path, ROOT, ROOT / "tests" / "tools", inherited.get("PYTHONPATH", "")]
    inherited["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    command = [sys.executable, *map(str, arguments)]
    env = inherited | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


def run_tests(*tests: str, path: Sequence[Path], **environment: str) -> None:
    """These tests of this repository pass with the packages of ``path`` over those of the environment."""
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    result = python(*arguments, path=path, cwd=ROOT / "tests", **environment)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-2000:]
    assert re.search(r"\d+ passed", result.stdout)


def cli(*words: object, **environment: str) -> Result:
    """What ``cw-grpo`` says, in this process."""
    return CliRunner().invoke(app, list(map(str, words)), env=environment)


def free_port() -> str:
    """A port that nothing listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def wait_until(happened: Callable[[], Any], said: str | Path, process: Any = None, pause: float = 0.05) -> None:
    """Wait until it has happened. If the process ends first, or time is over, fail with the text, or a log's end."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        lives = process is None or process.poll() is None
        assert lives and time.monotonic() < deadline, said if isinstance(said, str) else said.read_text()[-6000:]
        time.sleep(pause)


def bash(
    script: str, *arguments: object, code: int = 0, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What a script of examples/ prints, started with this environment's programs. It has to end with ``code``."""
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "HF_HUB_OFFLINE": "1"} | environment
    command = ["bash", ROOT / "examples" / script, *arguments]
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert result.returncode == code, result.stdout[-3000:] + result.stderr[-3000:]
    return result
