"""What CW-GRPO costs beside what verl does anyway, as ratios measured side by side in one process.

    python tests/benchmarks/bench_weights.py [--device cuda] [--groups 256] [--rounds 15]

The estimator runs once a step on the trainer's driver, a CPU: against verl's grpo and grpo_vectorized, with the one
thread that Ray gives the driver's actor (unless OMP_NUM_THREADS says otherwise), and with as many as torch takes. The
loss runs in every micro-batch on the device of the model: against verl's vanilla, clip_cov and kl_cov, forward and
backward. Every round runs each candidate once, in a new random order; times are medians, ratios medians of the rounds'
ratios.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import trainer_base
from verl.workers.config import ActorConfig, PolicyLossConfig

import cw_plugin  # noqa: F401  (registers cw_grpo)
from cw_plugin.verl_integration.estimator import TrainerContext, trainer_context
from cw_plugin.verl_integration.options import Options

WIDTH = 4096
RESPONSES = 12


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def measure(candidates: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for step in range(rounds + 2):
        for name in random.sample(list(candidates), len(candidates)):
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


def step_batch(groups: int, device: str) -> dict:
    """A training batch as verl's length balancing leaves it: the rows of a group scattered."""
    generator = torch.Generator().manual_seed(0)
    rows = groups * RESPONSES
    lengths = torch.randint(256, WIDTH + 1, (rows,), generator=generator)
    rewards = torch.zeros(rows, WIDTH)
    rewards[torch.arange(rows), lengths - 1] = torch.randint(0, 3, (rows,), generator=generator).float()
    order = torch.randperm(rows, generator=generator)
    return {
        "token_level_rewards": rewards.to(device),
        "response_mask": (torch.arange(WIDTH) < lengths[:, None]).long().to(device),
        "index": np.array([f"prompt-{i % groups}" for i in order.tolist()], dtype=object),
        "old_log_probs": -torch.rand(rows, WIDTH, generator=generator).exp().sub(1).pow(3).to(device),
    }


def estimators(groups: int, device: str, in_trainer: bool) -> dict[str, Callable[[], object]]:
    """Called directly, or as verl's V1 trainer does, with its rule for sessions of several outputs."""
    tensors = step_batch(groups, device)
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


def recorded(call: Callable[[], object]) -> Callable[[], object]:
    """A step whose covariance distribution is recorded, the file apart."""

    def record() -> object:
        context = TrainerContext(step=1)
        token = trainer_context.set(context)
        try:
            result = call()
        finally:
            trainer_context.reset(token)
        assert context.recorder is not None
        return result, context.recorder.bins()

    return record


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


def measure_estimators(
    console: Console, options: argparse.Namespace, chip: str, threads: int, in_trainer: bool
) -> None:
    device = options.device
    candidates = estimators(options.groups, device, in_trainer)
    one_tensor = options.groups * RESPONSES * WIDTH * 4
    times = measure(candidates, device, options.rounds)
    where = f"{chip}, {threads} thread{'s' * (threads > 1)}" if device == "cpu" else chip
    how = "as the trainer calls it" if in_trainer else "called alone"
    title = f"Advantages of {options.groups} groups of {RESPONSES}, {WIDTH} wide, {how}, on {where}"
    table = Table(title=title, title_justify="left")
    for column in ("estimator", "ms", "x grpo", "x grpo_vectorized", "peak memory / one float32 tensor"):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    for name, call in candidates.items():
        peak = max(peak_bytes(call, device) for _ in range(3)) / one_tensor
        table.add_row(
            name, f"{1e3 * statistics.median(times[name]):.1f}", f"{ratio(times, name, 'grpo'):.2f}",
            f"{ratio(times, name, 'grpo_vectorized'):.2f}", f"{peak:.2f}",
        )  # fmt: skip
    console.print(table)

    pair = {"plain": candidates["cw_grpo"], "recorded": recorded(candidates["cw_grpo"])}
    times = measure(pair, device, options.rounds)
    share, every = ratio(times, "recorded", "plain") - 1, Options().record_every
    console.print(
        f"Recording the covariance distribution adds {share:.0%} to cw_grpo in that step, {share / every:.1%} at the "
        f"default of every {every}th"
    )
    del candidates, pair

    quarter = max(options.groups // 4, 1)
    sizes = {groups: estimators(groups, device, in_trainer) for groups in (quarter, 4 * quarter)}
    calls = {f"{name}, {groups}": sizes[groups][name] for groups in sizes for name in ("grpo", "cw_grpo")}
    times = measure(calls, device, options.rounds)
    grpo, cw_grpo = (ratio(times, f"{name}, {4 * quarter}", f"{name}, {quarter}") for name in ("grpo", "cw_grpo"))
    console.print(
        f"Four times the rows ({quarter} -> {4 * quarter} groups): "
        f"grpo {grpo:.2f} times the time, cw_grpo {cw_grpo:.2f}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", type=int, default=256)
    parser.add_argument("--rows", type=int, default=16, help="rows of the loss's micro-batch")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    device = options.device
    chip = "CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    console = Console(width=110)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {chip}")

    threads = torch.get_num_threads()
    for count in sorted({1, threads}) if device == "cpu" else [threads]:
        torch.set_num_threads(count)
        for in_trainer in (False, True):
            measure_estimators(console, options, chip, count, in_trainer)

    candidates = losses(options.rows, device)
    times = measure(candidates, device, 2 * options.rounds)
    table = Table(title=f"Policy loss, forward and backward, {options.rows} x {WIDTH} on {chip}", title_justify="left")
    for column in ("loss_mode", "ms", "x vanilla"):
        table.add_column(column, justify="left" if column == "loss_mode" else "right")
    for name in candidates:
        table.add_row(name, f"{1e3 * statistics.median(times[name]):.2f}", f"{ratio(times, name, 'vanilla'):.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
