"""A small program in the place of main_ppo, started by launch.py: for the tests of a run's folder and processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from interpreter import ROOT

LAUNCH = ROOT / "examples" / "launcher" / "launch.py"
SEED = "+data.seed=1"
MODEL = "+model={a: 1, b: [x, y]}"
BACKEND = "+actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp"

# What main_ppo leaves behind: hydra's folder, metrics, a checkpoint every second step and at the end. With CRASH=N it
# ends after that step, with WAIT=N it waits there, beside a daemon that nothing ties to it. FIRST is added to the
# metrics before its first step.
TRAINER = """
import json, os, subprocess, time
from pathlib import Path
import hydra

@hydra.main(config_path=None, version_base=None)
def main(config):
    run = Path(config.trainer.default_local_dir)
    tracker = run / "latest_checkpointed_iteration.txt"
    first = int(tracker.read_text()) if tracker.exists() else 0
    with open(run / "metrics.jsonl", "w") as metrics:
        for step in range(first + 1, config.trainer.total_training_steps + 1):
            print("training step", step, os.environ.get("SAID", ""), flush=True)
            if step % 2 == 0 or step == config.trainer.total_training_steps:
                (run / f"global_step_{step}").mkdir(exist_ok=True)
                tracker.write_text(str(step))
            if step == 1:
                metrics.write(os.environ.get("FIRST", ""))
            metrics.write(json.dumps({"step": step, "data": {"training/global_step": step}}) + "\\n")
            metrics.flush()
            if os.environ.get("WAIT") == str(step):
                daemon = "setsid sleep 300 & echo $! > daemon.pid"
                subprocess.run(daemon, shell=True, cwd=run, env={}, check=True)
                time.sleep(300)
            if os.environ.get("CRASH") == str(step):
                os._exit(int(os.environ["CODE"]))

main()
"""


def command(trainer: Path, run: Path, *overrides: str, steps: int = 4) -> list[str]:
    return [
        *(sys.executable, str(LAUNCH), str(run), sys.executable, str(trainer)),
        *(f"+trainer.default_local_dir='{run}'", f"hydra.run.dir='{run}/hydra'"),
        *(f"+trainer.total_training_steps={steps}", *overrides),
    ]


def launched(*arguments, crash: int = 0, code: int = 3, env=None, **settings) -> subprocess.CompletedProcess:
    environment = os.environ | {"CRASH": str(crash), "CODE": str(code)} | (env or {})
    return subprocess.run(command(*arguments, **settings), env=environment, capture_output=True, text=True)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def trained(run: Path) -> list[int]:
    """The steps of every start, one after another."""
    files = [*sorted(run.glob("metrics.?.jsonl")), run / "metrics.jsonl"]
    return [json.loads(line)["step"] for file in files for line in file.read_text().splitlines()]


def write_trainer(folder: Path) -> Path:
    path = folder / "trainer.py"
    path.write_text(TRAINER)
    return path
