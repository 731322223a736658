"""For the slow tests of OpenRLHF and SkyRL: their environment, how a run is killed, and whether it trained rightly."""

import os
import shutil
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import ROOT, wait_until
from probe_files import Call
from reference import grpo_advantages, reference_advantages


def environment(request: pytest.FixtureRequest, host: str) -> str:
    """PATH with an environment of its own, HOST_VENV or one in pytest's cache; the problems are made there."""
    venv = os.environ.get(f"{host.upper()}_VENV") or request.config.cache.mkdir(host) / "venv"
    subprocess.run(["bash", ROOT / "examples" / host / "cpu" / "install.sh", venv], check=True)
    path = f"{venv}/bin{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["bash", ROOT / "examples" / "cpu" / "data.sh"], env={**os.environ, "PATH": path}, check=True)
    return path


def start(
    host: str, path: str, folder: Path, program: str, settings: str, *flags: str, **more: str
) -> subprocess.Popen:
    """The host's program, whose probes write to ``folder / "probe"``. What it prints is added to ``folder / "log"``."""
    (folder / "probe").mkdir(parents=True, exist_ok=True)
    imported = (ROOT, ROOT / "tests" / "tools", ROOT / "examples" / host / "cpu")
    environment = {"PATH": path, "PYTHONPATH": os.pathsep.join(map(str, imported)), "PROBE": str(folder / "probe")}
    environment |= {"HF_HUB_OFFLINE": "1", "CW_GRPO_RECORD_EVERY": "1"}
    with open(folder / "log", "a") as log:
        return subprocess.Popen(
            [shutil.which("python", path=path), "-m", program, *settings.split(), *flags],
            env=os.environ | environment | more,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: subprocess.Popen) -> None:
    """A killed driver leaves Ray's processes for a moment."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(10)


def kill_and_resume(folder: Path, first: subprocess.Popen, resume: Callable[[], subprocess.Popen], saved: Any) -> int:
    """Kill a run of five steps when it has saved two, and train on until its end. ``saved()`` is the newest saved step.
    Returns the step at which the second start began, whose probes alone are left."""
    log = folder / "log"
    try:
        wait_until(lambda: saved() >= 2, log, first)
    finally:
        end(first)
    reached = saved()
    assert 2 <= reached < 5
    for file in (folder / "probe").glob("*"):  # of a step that the checkpoint may not have
        file.unlink()
    second = resume()
    try:
        assert second.wait() == 0, log.read_text()[-5000:]
    finally:
        end(second)
    assert log.read_text().count("cw_grpo: this run trains on reweighted advantages") == 2
    records = {file.name for file in (folder / "tokens").glob("*.parquet")}
    assert {f"step_{step:06d}.parquet" for step in range(1, 6)} <= records
    return reached


def check_weights(
    computed: list[Call],
    trained: list[Call],
    samples: int,
    epsilon: float,
    scale: Callable[[dict[str, Any], int], float] = lambda row, rows: 1.0,
) -> int:
    """Every row that was trained on carries the weights of its whole prompt group, computed anew from the rewards.

    Args:
        computed: of each step, its rows with prompt, reward, log_probs and mask.
        trained: of each micro-batch of each process, its rows with log_probs, mask and advantages.
        epsilon: the host's, in GRPO's advantages.
        scale: what the host multiplies the advantages of a row by; it gets the row, and how many rows the step has.

    Returns:
        How many prompt groups several processes shared.
    """
    expected, processes, reweighted = {}, defaultdict(set), 0
    for step, (_, rows) in enumerate(computed):
        prompts = [row["prompt"] for row in rows]
        assert set(Counter(prompts).values()) == {samples}
        advantages = grpo_advantages([row["reward"] for row in rows], prompts, epsilon)
        log_probs, masks = ([row[name] for row in rows] for name in ("log_probs", "mask"))
        weighted, _ = reference_advantages(log_probs, advantages, masks, prompts)
        for row, values, plain in zip(rows, weighted, advantages, strict=True):
            reweighted += sum(abs(value - plain) > 0.01 for value in torch.tensor(values)[row["mask"].bool()].tolist())
            scaled = torch.tensor(values)[row["mask"].bool()] * scale(row, len(rows))
            expected[_key(row)] = step, row["prompt"], scaled.tolist()
    assert reweighted > 100 and trained and len({process for process, _ in trained}) >= 2
    for process, rows in trained:
        for row in rows:
            step, prompt, values = expected[_key(row)]  # two equal responses to a prompt have the same
            assert row["advantages"][row["mask"].bool()].tolist() == pytest.approx(values, abs=3e-6, rel=1e-5)
            processes[step, prompt].add(process)
    return sum(len(several) > 1 for several in processes.values())


def _key(row: dict[str, Any]) -> bytes:
    return row["log_probs"][row["mask"].bool()].numpy().tobytes()
