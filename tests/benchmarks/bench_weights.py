"""What CW-GRPO costs beside what verl does anyway, as ratios measured side by side in one process.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_weights.py [--device cuda]

The estimator runs once a step on the trainer's driver, a CPU to whose actor Ray gives one thread: against verl's grpo,
called alone, and as verl's trainer calls it. Batches: lengths uniform between 256 and 4096; the same with a few very
improbable tokens; and lengths with a mean of a quarter of the width. The loss runs in every micro-batch on the device
of the model: against verl's vanilla, clip_cov and kl_cov, forward and backward. Every round runs each candidate once,
in a new random order; times are medians, ratios medians of the rounds' ratios. Prints Markdown.
"""

import argparse
import ctypes
import functools
import gc
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import trainer_base
from verl.workers.config import ActorConfig, PolicyLossConfig

from cw_plugin.hosts.verl import register  # noqa: F401  (registers cw_grpo)
from cw_plugin.hosts.verl.trainer import VerlRun

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from trainers import v1_trainer

GROUPS, RESPONSES, WIDTH = 256, 12, 4096  # of the step's batch
ROWS = 16  # of the loss's micro-batch
ROUNDS = 11
Candidates = dict[str, Callable[[], object]]


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def measure(candidates: Candidates, device: str, rounds: int = ROUNDS) -> dict[str, list[float]]:
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


def peak_bytes(call: Callable[[], object]) -> int:
    """Most of the process's memory held at once beyond what was held before, the result included."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # gives back what is free, so that using it counts
    Path("/proc/self/clear_refs").write_text("5")  # Linux counts the peak anew
    before = psutil.Process().memory_info().rss
    call()
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(peak) - before


def table(title: str, times: dict[str, list[float]], memory: dict[str, float] | None = None) -> None:
    """The first candidate is what the others are compared with."""
    base = next(iter(times.values()))
    print(f"\n{title}\n\n| | ms | ratio |{' memory |' * bool(memory)}\n|---|---:|---:|{'---:|' * bool(memory)}")
    for name, of_name in times.items():
        ratio = statistics.median(mine / other for mine, other in zip(of_name, base, strict=True))
        held = f" {memory[name]:.1f} |" if memory else ""
        print(f"| {name} | {1e3 * statistics.median(of_name):.1f} | {ratio:.2f} |{held}")


def step_batch(device: str, kind: str = "uniform") -> dict:
    """A training batch as verl's length balancing leaves it: the rows of a group scattered."""
    generator = torch.Generator().manual_seed(0)
    rows = GROUPS * RESPONSES
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
        "index": np.array([f"prompt-{i % GROUPS}" for i in order.tolist()], dtype=object),
        "old_log_probs": log_probs.to(device),
    }


def called_alone(device: str, kind: str) -> Candidates:
    arguments = step_batch(device, kind)
    without = {name: value for name, value in arguments.items() if name != "old_log_probs"}
    return {
        "grpo": lambda: core_algos.get_adv_estimator_fn("grpo")(**without),
        "cw_grpo": lambda: core_algos.get_adv_estimator_fn("cw_grpo")(**arguments),
    }


def called_by_the_trainer(device: str, run: VerlRun) -> Candidates:
    """As verl's V1 trainer does, with its rule for sessions; in a run of cw_grpo, it calls the run."""
    tensors = step_batch(device)
    index = tensors.pop("index")
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(index)]

    of_verl = trainer_base.compute_advantage_for_multi_trajectories

    def call(name: str) -> object:
        compute = functools.partial(run.compute_advantages, of_verl) if name == "cw_grpo" else of_verl
        return compute(
            DataProto.from_dict(tensors=tensors, non_tensors={"uid": index}), batch_keys=keys, adv_estimator=name
        )

    return {name: functools.partial(call, name) for name in ("grpo", "grpo_vectorized", "cw_grpo")}


def losses(device: str) -> Candidates:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(256, WIDTH + 1, (ROWS, 1), generator=generator)
    log_prob = -torch.rand(ROWS, WIDTH, generator=generator).exp().sub(1).pow(3)
    arguments: dict[str, Any] = {
        "old_log_prob": (log_prob + 0.02 * torch.randn(ROWS, WIDTH, generator=generator)).to(device),
        "log_prob": log_prob.to(device).requires_grad_(),
        "advantages": torch.randn(ROWS, 1, generator=generator).expand(ROWS, WIDTH).contiguous().to(device),
        "response_mask": (torch.arange(WIDTH) < lengths).to(device),
    }

    def call(mode: str) -> object:
        config = ActorConfig(
            strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(loss_mode=mode)
        )
        config.global_batch_info.update(
            dp_size=1, batch_num_tokens=int(lengths.sum()), global_batch_size=ROWS, loss_scale_factor=None
        )
        loss, _ = core_algos.get_policy_loss_fn(mode)(**arguments, loss_agg_mode="token-mean", config=config)
        return torch.autograd.grad(loss, arguments["log_prob"])

    return {mode: functools.partial(call, mode) for mode in ("vanilla", "clip_cov", "kl_cov", "cw_grpo")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    chip = "CPU" if device == "cpu" else torch.cuda.get_device_name(device)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {chip}")

    one_tensor = GROUPS * RESPONSES * WIDTH * 4
    for kind in ("uniform", "heavy tails", "quarter"):
        calls = called_alone(device, kind)
        of_process = calls if device == "cpu" else {}
        memory = {name: max(peak_bytes(call) for _ in range(3)) / one_tensor for name, call in of_process.items()}
        title = f"{GROUPS} groups of {RESPONSES}, {WIDTH} wide, {kind}, called alone. Memory in float32 tensors"
        table(title, measure(calls, device), memory)
    trainer = v1_trainer("algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.record_every=0")
    calls = called_by_the_trainer(device, VerlRun(trainer))
    table("The same as the trainer calls it", measure(calls, device))
    table(f"Policy loss, forward and backward, {ROWS} x {WIDTH}", measure(losses(device), device, 2 * ROUNDS))


if __name__ == "__main__":
    main()
