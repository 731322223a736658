"""verl beside TRL: the quickstart's model and problems, trained by both for 50 steps with the same settings.

    pip install --no-deps --target TRL trl==1.16.0      # apart, because verl 0.9.1 cannot train beside it
    python tests/benchmarks/bench_hosts.py OUT --trl TRL [--seeds 1 2 3] [--steps 50]

It needs the environment of examples/quickstart_cpu.sh. The runs are those of the two quickstarts, by turns. Those that
OUT holds are not repeated. Prints Markdown: medians over the seeds, and the median ratio of the second host to the
first. Memory is the largest sum of the processes' proportional set sizes (PSS), in which a shared page counts once,
sampled every two seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
from rich.console import Console

from cw_plugin.reports.runs import read_run

ROOT = Path(__file__).parents[2]
SETTINGS = {  # what the quickstarts do not have in common, and what takes time beside training
    "verl": ["trainer.val_before_train=False", "trainer.save_freq=-1"],
    "trl": ["--eval_on_start", "false", "--save_strategy", "no", "--weight_decay", "0.01"],
}
SCRIPTS = {"verl": "examples/quickstart_cpu.sh", "trl": "examples/trl/quickstart_cpu.sh"}
ROWS = {
    "first": ("seconds to the end of the first step", ".0f"),
    "first_cpu": ("CPU seconds until then", ".0f"),
    "step": ("seconds a step after that", ".2f"),
    "step_cpu": ("CPU seconds a step after that", ".2f"),
    "gib": ("peak memory of all processes, GiB", ".1f"),
    "processes": ("processes", ".0f"),
    "reward": ("reward, mean of the last 10 steps", ".2f"),
    "accuracy": ("right answers on held-out problems at the end", ".3f"),
}


class Usage:
    """CPU time and memory of a process and its descendants; that of processes which end between two samples is lost."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}  # seconds of every process that was seen, also if it has ended
        self.gib, self.processes = 0.0, 0

    def sample(self) -> float:
        """CPU seconds until now."""
        memory = []
        with suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                    times = process.cpu_times()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
                    memory.append(process.memory_full_info().pss / 2**30)
        self.gib, self.processes = max(self.gib, sum(memory)), max(self.processes, len(memory))
        return sum([*self._cpu.values()])  # a copy: two threads sample


def measure(host: str, seed: int, out: Path, trl: Path, steps: int) -> dict[str, float]:
    run = out / f"{host}-seed{seed}"
    path = [str(trl)] if host == "trl" else []
    environment = os.environ | {
        "RUN": str(run),
        "SEED": str(seed),
        "STEPS": str(steps),
        "VENV": os.environ.get("VENV", sys.prefix),
        "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([*path, str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    started = time.monotonic()
    process = subprocess.Popen(
        ["bash", ROOT / SCRIPTS[host], *SETTINGS[host]], env=environment, stdout=subprocess.PIPE, text=True
    )
    usage, ended = Usage(process.pid), threading.Event()

    def watch() -> None:
        while not ended.wait(2):
            usage.sample()

    watcher = threading.Thread(target=watch)
    watcher.start()
    seen: dict[int, tuple[float, float]] = {}  # step -> seconds of the clock and of the CPU at its end
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{host} {seed}  {line}", end="", flush=True)
        if step := re.match(r"\[\d+:\d\d\] step +(\d+) ", line):
            seen[int(step[1])] = time.monotonic() - started, usage.sample()
    ended.set()
    watcher.join()
    if process.wait() != 0:
        sys.exit(f"{host} with seed {seed} ended with code {process.returncode}; its output: {run}/train.log")
    (first, cpu), (last, last_cpu) = seen[1], seen[steps]
    done = read_run(run)
    return {
        "first": first,
        "first_cpu": cpu,
        "step": (last - first) / (steps - 1),
        "step_cpu": (last_cpu - cpu) / (steps - 1),
        "gib": usage.gib,
        "processes": usage.processes,
        "reward": float(done.series("critic/score/mean").loc[steps - 9 :].mean()),
        "accuracy": float(done.accuracy[steps]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--trl", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()

    results = {}
    for seed in arguments.seeds:
        for host in SCRIPTS:
            file = arguments.out.absolute() / f"{host}-seed{seed}.json"
            if not file.exists():
                found = measure(host, seed, file.parent, arguments.trl, arguments.steps)
                file.write_text(json.dumps(found, indent=1))
            results[host, seed] = json.loads(file.read_text())

    console = Console(width=200, highlight=False)
    console.print(f"| seeds {', '.join(map(str, arguments.seeds))} | {' | '.join(SCRIPTS)} | ratio |")
    console.print("|---|---:|---:|---:|")
    for key, (title, digits) in ROWS.items():
        verl, trl = ([results[host, seed][key] for seed in arguments.seeds] for host in SCRIPTS)
        ratio = statistics.median(second / first for first, second in zip(verl, trl, strict=True))
        console.print(
            f"| {title} | {statistics.median(verl):{digits}} | {statistics.median(trl):{digits}} | {ratio:.2f} |"
        )


if __name__ == "__main__":
    main()
