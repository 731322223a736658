"""Run a training command with a progress line, its full output in a file, and nothing left running afterwards.

python launch.py LOG METRICS COMMAND...

METRICS is the file that verl's "file" logger writes. The exit code is the command's; on Ctrl-C it is 130.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

# What main_ppo prints on its way to the first step, and what to call it.
STAGES = (
    ("ray init kwargs", "starting Ray"),
    ("Size of train dataset", "loading data and model"),
    ("LLMServerManager", "vLLM server is up"),
    ("ready to fit", "everything is loaded"),
    ("Initial validation metrics", "first training step"),
)
MARK = "CW_GRPO_LAUNCH"  # in the environment of every process of the run, however it detached itself


def kill_marked(mark: str) -> None:
    """Ask every process of the run to end, and end those that have not within five seconds."""
    marked = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                marked.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue  # gone, or somebody else's
    for process in marked:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    for process in psutil.wait_procs(marked, timeout=5)[1]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def read_metrics(path: Path) -> list[dict]:
    """Steps logged so far; the last line may still be being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line]


def describe(record: dict) -> str:
    data = record["data"]
    shown = {
        "reward": data.get("critic/score/mean"),
        "entropy": data.get("actor/entropy"),
        "cov before": data.get("cw_grpo/covariance_before"),
        "after": data.get("cw_grpo/covariance_after"),
        "tokens w<0.5": data.get("cw_grpo/downweighted_share"),
        "s": data.get("timing_s/step"),
    }
    return f"step {record['step']:>3}  " + "  ".join(f"{k} {v:.3f}" for k, v in shown.items() if v is not None)


def main() -> int:
    log, metrics, command = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    mark = uuid.uuid4().hex
    started = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - started), 60)
        print(f"[{minutes}:{seconds:02}] {text}", flush=True)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    stages = list(STAGES)
    printed, size = 0, -1
    with open(log, "wb") as output, open(log, "rb") as reader:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {MARK: mark}, start_new_session=True
        )
        try:
            running = True
            while running:
                time.sleep(0.5)
                running = process.poll() is None
                new = reader.read().decode(errors="replace")
                while stages and any(text in new for text, _ in stages):
                    text, stage = stages.pop(0)
                    if text in new:
                        say(stage)
                now = metrics.stat().st_size if metrics.exists() else 0
                if now == size:
                    continue
                size = now
                records = [record for record in read_metrics(metrics) if "training/global_step" in record["data"]]
                for record in records[printed:]:
                    say(describe(record))
                printed = len(records)
        except KeyboardInterrupt:
            say("stopping ...")
            return 130
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # both may come: from the terminal, and from what called this
            kill_marked(mark)
    if process.returncode:
        lines = log.read_text(errors="replace").splitlines()
        print("\n".join(lines[-30:]), file=sys.stderr)
        print(
            f"The training command failed with exit code {process.returncode}; all of its output: {log}",
            file=sys.stderr,
        )
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
