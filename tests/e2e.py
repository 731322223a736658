"""Starts main_ppo for the end-to-end tests, and computes once more what a run should have done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import torch
from reference import reference_weights

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "cpu" / "model"

METRICS = (
    "sigma", "signal_share", "weight_mean", "weight_min", "effective_sample_share", "downweighted_share",
    "extreme_gradient_share", "extreme_balance",
    "covariance_before", "covariance_after", "covariance_max", "covariance_min", "seconds",
)  # fmt: skip

# Smaller than the quickstart's own batch, and no validation.
SMALLER = ("trainer.val_before_train=False", "trainer.test_freq=-1", "actor_rollout_ref.rollout.n=4")


def quickstart(run: Path, *overrides: str, size: tuple[str, ...] = SMALLER, **env: str) -> subprocess.Popen:
    environment = os.environ | {
        "RUN": str(run),
        "VENV": sys.prefix,
        "PYTHONPATH": str(ROOT / "tests"),
        "VERL_USE_EXTERNAL_MODULES": "e2e_probe",
        "E2E_PROBE_DIR": str(run / "probe"),
    }
    run.mkdir(parents=True, exist_ok=True)
    with open(run / "stdout", "a") as stdout:
        return subprocess.Popen(
            ["bash", "examples/quickstart_cpu.sh", *size, *overrides],
            cwd=ROOT,
            env=environment | env,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        )


def finish(run: Path, process: subprocess.Popen) -> list[dict]:
    """Wait for the run, and return the metrics of its training steps."""
    code = process.wait(timeout=600)
    assert code == 0, (run / "stdout").read_text()[-6000:]
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "training/global_step" in record["data"]]


def batches(run: Path) -> list[dict]:
    return [torch.load(path, weights_only=False) for path in sorted((run / "probe").glob("*.pt"))]


def grpo_column(batch: dict) -> list[float]:
    """GRPO's advantage of each response in float64: reward minus mean, over deviation (unbiased, + 1e-6), by prompt."""
    rewards = batch["token_level_rewards"].double().sum(-1)
    column = []
    for row, uid in enumerate(batch["uids"]):
        peers = rewards[[i for i, other in enumerate(batch["uids"]) if other == uid]]
        mean, std = (peers.mean(), peers.std()) if len(peers) > 1 else (0.0, 1.0)
        column.append(float((rewards[row] - mean) / (std + 1e-6)))
    return column


def recompute(batch: dict) -> torch.Tensor:
    column = grpo_column(batch)
    weights, _ = reference_weights(
        batch["old_log_probs"].tolist(), column, batch["response_mask"].tolist(), batch["uids"]
    )
    return torch.tensor(weights, dtype=torch.float64) * torch.tensor(column, dtype=torch.float64)[:, None]


def assert_right(run: Path) -> None:
    seen = batches(run)
    assert seen
    reweighted = 0
    for batch in seen:
        torch.testing.assert_close(batch["advantages"].double(), recompute(batch), rtol=1e-4, atol=1e-4)
        valid = batch["response_mask"].bool()
        plain = torch.tensor(grpo_column(batch))[:, None].expand_as(valid)[valid]
        reweighted += (plain - batch["advantages"][valid]).abs().gt(0.01).sum().item()
    assert reweighted > 100  # the batches had something to reweight


def assert_same_first_step(one: Path, other: Path) -> list[int]:
    """The rollouts of step 1 are the same. Rows are matched by their log-probs; equal responses are interchangeable."""
    before, after = batches(one)[0], batches(other)[0]
    assert len(before["uids"]) == len(after["uids"])
    x, y = before["old_log_probs"] * before["response_mask"], after["old_log_probs"] * after["response_mask"]
    distance = torch.cdist(x.double(), y.double(), p=float("inf"))
    match = distance.argmin(1)
    assert distance.amin(1).max() < 1e-4 and distance.amin(0).max() < 1e-4
    torch.testing.assert_close(after["advantages"][match], before["advantages"], rtol=1e-3, atol=1e-3)
    return match.tolist()


def assert_logged(records: list[dict]) -> None:
    for record in records:
        logged = {k: v for k, v in record["data"].items() if k.startswith("cw_grpo/")}
        assert sorted(logged) == sorted(f"cw_grpo/{name}" for name in METRICS)
        assert 0 < logged["cw_grpo/effective_sample_share"] <= 1
        assert logged["cw_grpo/covariance_min"] <= 0 <= logged["cw_grpo/covariance_max"]


def trainer_processes(run: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("E2E_PROBE_DIR") == str(run / "probe"):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_for_ray(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "examples" / "launcher" / "wait_for_ray.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
