"""What CW-GRPO costs beside what verl does anyway, as ratios measured side by side in one process.

    python tests/benchmarks/bench_weights.py [--device cuda] [--groups 256] [--rounds 15]

The estimator runs once a step on the trainer's driver, a CPU: against verl's grpo, called alone with one thread (what
Ray gives the driver's actor) and with two, on a quiet machine and beside two processes that this starts and that keep
two cores busy; then as verl's trainer calls it. Batches: lengths uniform between 256 and 4096; the same with a few very
improbable tokens; and lengths with a mean of a quarter of the width. The loss runs in every micro-batch on the device
of the model: against verl's vanilla, clip_cov and kl_cov, forward and backward. Every round runs each candidate once,
in a new random order; times are medians, ratios medians of the rounds' ratios. Prints Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer
from verl.trainer.ppo.v1 import trainer_base
from verl.workers.config import ActorConfig, PolicyLossConfig

from cw_plugin.verl_integration import (
    register,  # noqa: F401  (registers cw_grpo)
)
from cw_plugin.verl_integration.options import Options

sys.path.insert(0, str(Path(__file__).parents[1]))
from trainers import legacy_trainer, v1_trainer

WIDTH = 4096
RESPONSES = 12


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def measure(
    candidates: dict[str, Callable[[], object]], device: str, rounds: int, shuffled: bool = True
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for step in range(rounds + 2):
        for name in random.sample(list(candidates), len(candidates)) if shuffled else candidates:
            synchronize(device)
            start = time.perf_counter()
            candidates[name]()
            synchronize(device)
            if step >= 2:  # warmed up
                times[name].append(time.perf_counter() - start)
    return times


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Most memory held at once beyond what was held before, the result included."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        synchronize(device)
        del result
        return torch.cuda.max_memory_allocated() - before
    process, peak, done = psutil.Process(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.0005)

    before = process.memory_info().rss
    watcher = threading.Thread(target=watch)
    watcher.start()
    result = call()
    done.set()
    watcher.join()
    peak = max(peak, process.memory_info().rss)
    del result
    return peak - before


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    return statistics.median(a / b for a, b in zip(times[name], times[base], strict=True))


def step_batch(groups: int, device: str, kind: str = "uniform") -> dict:
    """A training batch as verl's length balancing leaves it: the rows of a group scattered."""
    generator = torch.Generator().manual_seed(0)
    rows = groups * RESPONSES
    lengths = torch.randint(256, WIDTH + 1, (rows,), generator=generator)
    if kind == "quarter":  # log-normal, mean about a quarter of the width
        lengths = (800 * (0.6 * torch.randn(rows, generator=generator)).exp()).long().clamp(16, WIDTH)
    log_probs = -torch.rand(rows, WIDTH, generator=generator).exp().sub(1).pow(3)
    if kind == "heavy tails":  # most tokens nearly certain, a few beneath e^-10
        log_probs = -torch.randn(rows, WIDTH, generator=generator).mul(3).sub(4).exp()
    rewards = torch.zeros(rows, WIDTH)
    rewards[torch.arange(rows), lengths - 1] = torch.randint(0, 3, (rows,), generator=generator).float()
    order = torch.randperm(rows, generator=generator)
    return {
        "token_level_rewards": rewards.to(device),
        "response_mask": (torch.arange(WIDTH) < lengths[:, None]).long().to(device),
        "index": np.array([f"prompt-{i % groups}" for i in order.tolist()], dtype=object),
        "old_log_probs": log_probs.to(device),
    }


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Each keeps one core busy. They end with the block, and also when this process is killed."""
    code = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(10**6))"
    processes = []
    try:
        for _ in range(count):
            processes.append(subprocess.Popen([sys.executable, "-c", code, str(os.getpid())]))
        time.sleep(0.5 if count else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def estimators(groups: int, device: str, in_trainer: bool, kind: str = "uniform") -> dict[str, Callable[[], object]]:
    """Called directly, or as verl's V1 trainer does, with its rule for sessions of several outputs."""
    tensors = step_batch(groups, device, kind)
    index = tensors.pop("index")
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(index)]

    def candidate(name: str) -> Callable[[], object]:
        if in_trainer:
            return lambda: trainer_base.compute_advantage_for_multi_trajectories(
                DataProto.from_dict(tensors=tensors, non_tensors={"uid": index}), batch_keys=keys, adv_estimator=name
            )
        arguments = {**tensors, "index": index}
        if name != "cw_grpo":
            del arguments["old_log_probs"]
        return lambda: core_algos.get_adv_estimator_fn(name)(**arguments)

    return {name: candidate(name) for name in ("grpo", "grpo_vectorized", "cw_grpo")}


def measure_records(console: Console, options: argparse.Namespace) -> None:
    """What a record of tokens adds to the estimator's call in its step."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = legacy_trainer("algorithm.adv_estimator=cw_grpo", f"trainer.default_local_dir={folder}")
        for step, groups in ((50, 12), (100, options.groups)):  # both are recorded; the paper's step has 12
            tensors = step_batch(groups, options.device, "quarter")
            rows = len(tensors["response_mask"])
            generator = torch.Generator().manual_seed(2)
            ids = (151_936 * torch.rand(rows, WIDTH, generator=generator).pow(4)).long()  # some are more frequent
            index = tensors.pop("index")
            tensors |= {"responses": ids, "prompts": ids[:, :200]}

            def call(at_step: int, tensors: dict = tensors, index: Any = index) -> None:
                trainer.global_steps = at_step
                data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": index})
                ray_trainer.compute_advantage(data, adv_estimator="cw_grpo", config=trainer.config.algorithm)

            candidates = {"plain": functools.partial(call, 2), "recorded": functools.partial(call, step)}
            times = measure(candidates, options.device, options.rounds, shuffled=False)
            plain, recorded = (statistics.median(times[name]) for name in ("plain", "recorded"))
            megabytes = max(path.stat().st_size for path in Path(folder).rglob("*.parquet")) / 1e6
            tokens = int(tensors["response_mask"].sum())
            console.print(
                f"\n{groups} groups, {tokens} tokens: cw_grpo takes {1e3 * plain:.0f} ms, and {1e3 * recorded:.0f} ms "
                f"in a step that it records (by default every {Options().record_every}th), {megabytes:.1f} MB."
            )


def losses(rows: int, device: str) -> dict[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(256, WIDTH + 1, (rows, 1), generator=generator)
    log_prob = -torch.rand(rows, WIDTH, generator=generator).exp().sub(1).pow(3)
    arguments = {
        "old_log_prob": (log_prob + 0.02 * torch.randn(rows, WIDTH, generator=generator)).to(device),
        "log_prob": log_prob.to(device).requires_grad_(),
        "advantages": torch.randn(rows, 1, generator=generator).expand(rows, WIDTH).contiguous().to(device),
        "response_mask": (torch.arange(WIDTH) < lengths).to(device),
    }

    def candidate(mode: str) -> Callable[[], object]:
        config = ActorConfig(
            strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(loss_mode=mode)
        )
        config.global_batch_info.update(
            dp_size=1, batch_num_tokens=int(lengths.sum()), global_batch_size=rows, loss_scale_factor=None
        )

        def call() -> object:
            loss, _ = core_algos.get_policy_loss_fn(mode)(**arguments, loss_agg_mode="token-mean", config=config)
            return torch.autograd.grad(loss, arguments["log_prob"])

        return call

    return {mode: candidate(mode) for mode in ("vanilla", "clip_cov", "kl_cov", "cw_grpo")}


def markdown(console: Console, title: str, header: list[str], rows: list[list[str]]) -> None:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    console.print(f"\n{title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines), soft_wrap=True)


def measure_load(console: Console, options: argparse.Namespace, chip: str, threads: list[int]) -> None:
    """grpo and cw_grpo called alone, with each number of threads, on a quiet machine and beside other work."""
    one_tensor = options.groups * RESPONSES * WIDTH * 4
    rows = []
    for kind in ("uniform", "heavy tails", "quarter"):
        candidates = estimators(options.groups, options.device, in_trainer=False, kind=kind)
        del candidates["grpo_vectorized"]
        for count in threads:
            torch.set_num_threads(count)
            calls = candidates.values()
            peaks = [max(peak_bytes(call, options.device) for _ in range(3)) / one_tensor for call in calls]
            for busy in (0, 2) if options.device == "cpu" else (0,):
                with busy_processes(busy):
                    times = measure(candidates, options.device, options.rounds)
                ms = [f"{1e3 * statistics.median(times[name]):.0f}" for name in ("grpo", "cw_grpo")]
                memory = [f"{peak:.1f}" for peak in peaks]
                rows.append([kind, str(count), str(busy), *ms, f"{ratio(times, 'cw_grpo', 'grpo'):.2f}", *memory])
    title = f"{options.groups} groups of {RESPONSES}, {WIDTH} wide, called alone, {chip}. Memory in float32 tensors"
    header = ["batch", "threads", "busy beside", "grpo ms", "cw_grpo ms", "ratio", "grpo memory", "cw_grpo memory"]
    markdown(console, title, header, rows)


def measure_in_trainer(console: Console, options: argparse.Namespace, chip: str) -> None:
    device = options.device
    trainer = v1_trainer("algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.record_every=0")
    candidates = estimators(options.groups, device, in_trainer=True)
    one_tensor = options.groups * RESPONSES * WIDTH * 4
    times = measure(candidates, device, options.rounds)
    rows = []
    for name, call in candidates.items():
        peak = max(peak_bytes(call, device) for _ in range(3)) / one_tensor
        ms = f"{1e3 * statistics.median(times[name]):.0f}"
        rows.append([name, ms, f"{ratio(times, name, 'grpo'):.2f}", f"{peak:.1f}"])
    title = f"The same as the trainer calls it, {torch.get_num_threads()} thread(s), {chip}"
    markdown(console, title, ["estimator", "ms", "ratio", "memory"], rows)
    del trainer  # the hooks know only the last one that lives


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", type=int, default=256)
    parser.add_argument("--rows", type=int, default=16, help="rows of the loss's micro-batch")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    device = options.device
    chip = "CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    console = Console(width=110)
    threads = torch.get_num_threads()
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chip}")

    measure_load(console, options, chip, [1, 2] if device == "cpu" else [torch.get_num_threads()])
    torch.set_num_threads(1)
    measure_in_trainer(console, options, chip)
    measure_records(console, options)

    torch.set_num_threads(threads)
    candidates = losses(options.rows, device)
    times = measure(candidates, device, 2 * options.rounds)
    rows = [
        [name, f"{1e3 * statistics.median(times[name]):.2f}", f"{ratio(times, name, 'vanilla'):.2f}"]
        for name in candidates
    ]
    title = f"Policy loss, forward and backward, {options.rows} x {WIDTH}, {threads} thread(s), {chip}"
    markdown(console, title, ["loss_mode", "ms", "ratio to vanilla"], rows)


if __name__ == "__main__":
    main()
