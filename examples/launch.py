"""Run a training command in its own folder. Whatever ends this process, none of the command's processes stays.

python launch.py [--show | --check] [--knob NAME] FOLDER COMMAND...

The command is verl's main_ppo with its overrides, which let it write into FOLDER. What it prints goes to
FOLDER/train.log, and a line is shown for every step of FOLDER/metrics.jsonl; with --show all of it is shown instead.

FOLDER has one owner and one set of settings (run_folder.py). The same command resumes its run; a command with other
settings is refused, with the advice to set NAME. --check only compares. The exit code is the command's, 2 where it
is refused, 130 on Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from run_folder import RunFolder, parse, read_metrics

# What main_ppo prints before the first step, and what to show instead.
STAGES = (
    ("ray init kwargs", "starting Ray"),
    ("Size of train dataset", "loading data and model"),
    ("LLMServerManager", "vLLM server is up"),
    ("ready to fit", "everything is loaded"),
    ("Initial validation metrics", "first training step"),
)


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


class Clock:
    """Says what happens, and how long after the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self.started), 60)
        print(f"[{minutes}:{seconds:02}] {text}", flush=True)


def watch(process: subprocess.Popen, log: Path, metrics: Path, clock: Clock) -> None:
    """Report the progress of the command until it ends."""
    stages = list(STAGES)
    printed, size = 0, -1
    with open(log, "rb") as reader:
        running = True
        while running:
            time.sleep(0.5)
            running = process.poll() is None
            new = reader.read().decode(errors="replace")
            while stages and any(text in new for text, _ in stages):
                text, stage = stages.pop(0)
                if text in new:
                    clock.say(stage)
            now = metrics.stat().st_size if metrics.exists() else 0
            if now == size:
                continue
            size = now
            records = [record for record in read_metrics(metrics) if "training/global_step" in record["data"]]
            for record in records[printed:]:
                clock.say(describe(record))
            printed = len(records)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--knob", default="RUN")
    parser.add_argument("folder", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    clock = Clock()

    run = RunFolder(arguments.folder, parse(arguments.command[1:]), arguments.knob)
    run.refuse_other_settings()
    if arguments.check:
        return 0
    if run.finished:
        run.marker.touch()
        print(f"{run.path} is at its last step, {run.steps}: nothing is left to train.")
        return 0
    run.keep_older_files()
    log = run.path / "train.log"
    where = "" if arguments.show else f"; all output goes to {log}"
    clock.say((f"going on after step {run.checkpoint}" if run.checkpoint else "starting") + where)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    # The guard ends the command, and all that it has started, when the pipe is closed: below, or by whatever ends us.
    with nullcontext() if arguments.show else open(log, "xb") as output:
        guard = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("guard.py")],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            pass_fds=[run.lock.fileno()],
            start_new_session=True,
        )
    assert guard.stdin is not None
    try:
        guard.stdin.write(json.dumps(arguments.command).encode() + b"\n")
        guard.stdin.flush()
        if arguments.show:
            guard.wait()
        else:
            watch(guard, log, run.path / "metrics.jsonl", clock)
    except KeyboardInterrupt:
        clock.say("stopping ...")
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # both may come: from the terminal, and from what called this
        guard.stdin.close()
        guard.wait()
    if guard.returncode == 0:
        run.finish()
    elif not arguments.show:
        lines = log.read_text(errors="replace").splitlines()
        print("\n".join(lines[-30:]), file=sys.stderr)
        print(
            f"The training command failed with exit code {guard.returncode}; all of its output: {log}", file=sys.stderr
        )
    return guard.returncode


if __name__ == "__main__":
    sys.exit(main())
