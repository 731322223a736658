"""Starts main_ppo for the end-to-end tests, and computes once more what a run should have done."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from interpreter import ROOT, wait_until
from reference import grpo_advantages, reference_advantages

from cw_plugin.statistics import CovarianceStatistics

MODEL = ROOT / "examples" / "cpu" / "model"
BIN = Path(sys.prefix) / "bin"
IN_EVERY_RUN = "run_r1_distill_qwen_1_5b_fsdp.sh"  # the recipe that is not left to -m slow

PARTS = sorted((ROOT / "patches").glob("*.patch"))
SITE_PACKAGES = Path(importlib.util.find_spec("verl").origin).parent.parent  # verl's wheel brings its own tests, too

# Smaller than the quickstart's own batch, and no validation.
SMALLER = (
    "trainer.val_before_train=False", "trainer.test_freq=-1",
    "data.train_batch_size=8", "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.rollout.n=4",
)  # fmt: skip


def environment(out: Path, **more: str) -> dict[str, str]:
    """For a run in ``out``: with this environment's programs, and e2e_probe.py in each of verl's processes."""
    probe = {"PYTHONPATH": str(ROOT / "tests" / "tools"), "VERL_USE_EXTERNAL_MODULES": "e2e_probe"}
    path = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "VENV": sys.prefix}
    return {**os.environ, **path, **probe, "E2E_PROBE_DIR": str(out / "probe"), **more}


def problems() -> Path:
    return Path(os.environ["QUICKSTART_DATA"]) / "open_rs"


def recipe_environment(out: Path, method: str = "cw_grpo", **more: str) -> dict[str, str]:
    """For two steps of a recipe, through the CPU overlay with the quickstart's model and problems."""
    return environment(
        out, OVERLAY="examples/cpu/overlay.sh", MODEL_PATH=str(MODEL), OUT=str(out), LOGGER='["file"]',
        TRAIN_FILES=str(problems() / "train.parquet"), VAL_FILES=str(problems() / "test.parquet"),
        MAX_PROMPT="192", MAX_RESPONSE="64", PROMPTS="8", RESPONSES="4", STEPS="2", TP="1", TEST_FREQ="2",
        METHOD=method, **more,
    )  # fmt: skip


def copy_verl(folder: Path, *parts: Path) -> Path:
    """A copy of verl and of its tests of the trainer, with the parts applied. The wheel lacks docs and examples."""
    for name in ("verl", "tests/trainer"):
        shutil.copytree(SITE_PACKAGES / name, folder / name, dirs_exist_ok=True)
    shutil.copy(SITE_PACKAGES / "tests" / "__init__.py", folder / "tests")
    for part in parts:
        subprocess.run(["git", "apply", "--include=verl/*", "--include=tests/*", part], cwd=folder, check=True)
    return folder


def start(script: str, stdout: Path, *overrides: str, **env: str) -> subprocess.Popen:
    """A script of examples/ in a session of its own, so that a signal to its group is a terminal's Ctrl-C."""
    with open(stdout, "a") as file:
        return subprocess.Popen(
            ["bash", f"examples/{script}", *overrides],
            cwd=ROOT,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        )


def quickstart(run: Path, *overrides: str, size: tuple[str, ...] = SMALLER, **env: str) -> subprocess.Popen:
    run.mkdir(parents=True, exist_ok=True)
    settings = environment(run, RUN=str(run), **env)
    return start("quickstart_cpu.sh", run / "stdout", *size, *overrides, **settings)


def training_steps(metrics: Path) -> list[dict[str, Any]]:
    """The metrics of the training steps in a file of verl's logger "file"."""
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [record for record in records if "training/global_step" in record["data"]]


def assert_succeeds(process: subprocess.Popen, stdout: Path) -> None:
    assert process.wait() == 0, stdout.read_text()[-6000:]


def finish(run: Path, process: subprocess.Popen) -> list[dict[str, Any]]:
    """Wait for the quickstart's run, and return the metrics of its training steps."""
    assert_succeeds(process, run / "stdout")
    return training_steps(run / "metrics.jsonl")


def saved_step(checkpoints: Path) -> int:
    tracker = checkpoints / "latest_checkpointed_iteration.txt"
    return int(tracker.read_text()) if tracker.exists() else 0


def batches(run: Path) -> list[dict[str, Any]]:
    """What each update of the policy was trained on."""
    return [torch.load(path, weights_only=False) for path in sorted((run / "probe").glob("*.pt"))]


def assert_right(run: Path) -> None:
    """Every step was trained on the weights of the reference, and there was something to reweight."""
    reweighted = 0
    for batch in batches(run):
        rewards, mask = batch["token_level_rewards"].double().sum(-1), batch["response_mask"]
        column = grpo_advantages(rewards.tolist(), batch["uids"])
        rows, _ = reference_advantages(batch["old_log_probs"], column, mask, batch["uids"])
        expected = torch.tensor(rows, dtype=torch.float64)
        torch.testing.assert_close(batch["advantages"].double(), expected, rtol=1e-4, atol=1e-4)
        reweighted += ((torch.tensor(column)[:, None] - expected).abs() > 0.01)[mask.bool()].sum().item()
    assert reweighted > 100


def assert_logged(records: list[dict[str, Any]], prefix: str = "cw_grpo/") -> None:
    """verl puts "actor/" before the names of a loss's metrics."""
    names = {f"{prefix}{name}" for name in (*CovarianceStatistics.__dataclass_fields__, "seconds")}
    for data in (record["data"] for record in records):
        assert {name for name in data if name.startswith(prefix)} == names
        assert 0 < data[f"{prefix}effective_sample_share"] <= 1
        assert data[f"{prefix}covariance_min"] <= 0 <= data[f"{prefix}covariance_max"]


def trainer_processes(run: Path) -> list[psutil.Process]:
    """The processes that a run has started."""
    of_run = str(run / "probe")
    return [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("E2E_PROBE_DIR") == of_run]


@contextmanager
def cluster(*arguments: str, **env: str) -> Iterator[tuple[str, str]]:
    """A Ray cluster that somebody else has started: its address, and its RAY_TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        command = [BIN / "ray", "start", "--head", "--block", "--port=0", "--include-dashboard=false"]
        with open(Path(folder) / "stdout", "w+") as stdout:
            process = subprocess.Popen(
                [*command, "--disable-usage-stats", *arguments],
                env=os.environ | {"RAY_TMPDIR": folder} | env,
                stdout=stdout,
                stderr=stdout,
            )
            try:
                address = Path(folder) / "ray" / "ray_current_cluster"
                wait_until(address.exists, Path(stdout.name), process)
                yield address.read_text(), folder
            finally:
                process.terminate()
                process.wait()
