"""What the weights cost as tokens, groups and processes grow. Prints Markdown.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_scale.py

Processes: as in TRL and ms-swift, where each holds 16 responses of up to 4,096 tokens. Up to 8 are real ones, joined
by gloo. More are one process, whose messages are answered with its own rows. Seconds are those of the CPU, because the
machine may have fewer cores than there are processes; bytes are what the messages of a batch carry to a process; memory
is its peak.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import Accelerator
from memory import peak_bytes

from cw_plugin.batch import Batch
from cw_plugin.options import Options
from cw_plugin.sharded import ShardedRun
from cw_plugin.weights import reweight

ROWS, WIDTH = 16, 4096
PROMPTS = {"whole groups": 8, "groups spread over processes": 32}  # responses to a prompt
GIB = 2**30
# Forward and backward, 6 FLOP a token and parameter, at 40 per cent of an H100's 990 TFLOP/s; generation comes on top.
STEP_OF_1_5B = 6 * 1.5e9 / (0.4 * 990e12)
# Bytes a token of what verl's V1 trainer fetches and writes when it computes advantages (trainer_base.py of 0.9.1).
VERL = {"response_mask": 8, "rm_scores": 4, "old_log_probs": 4, "rollout_log_probs": 4, "advantages": 4}


def batch(rows: int, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, advantages and mask; lengths are uniform from 256 tokens to the width."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(256, width + 1, (rows, 1), generator=generator)
    log_probs = -torch.rand(rows, width, generator=generator).exp().sub(1).pow(3)
    return log_probs, torch.randn(rows, generator=generator), (torch.arange(width) < lengths).long()


def cpu_seconds(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return statistics.median(times[1:])  # the first warms up


class Alone:
    """In place of accelerate's Accelerator: one of ``num_processes`` processes, of which the others do not exist."""

    process_index = 0

    def __init__(self, num_processes: int) -> None:
        self.num_processes = num_processes

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.repeat(self.num_processes, *[1] * (rows.ndim - 1))

    def pad_across_processes(self, rows: torch.Tensor, dim: int) -> torch.Tensor:
        return rows


class Counted:
    """An accelerator that counts the bytes of all messages that arrive."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator, self.bytes = accelerator, 0
        self.process_index, self.num_processes = accelerator.process_index, accelerator.num_processes

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        gathered = self.accelerator.gather(rows)
        self.bytes += gathered.nbytes if self.num_processes > 1 else 0
        return gathered

    def pad_across_processes(self, rows: torch.Tensor, dim: int) -> torch.Tensor:
        if self.num_processes > 1:
            self.bytes += 8 * rows.ndim * self.num_processes  # their shapes, which accelerate gathers
        return self.accelerator.pad_across_processes(rows, dim=dim)


def measured(accelerator: Any, responses: int, rounds: int) -> tuple[float, float, int]:
    """Seconds, peak MiB and bytes of one process for one batch."""
    counted, all_reduce = Counted(accelerator), dist.all_reduce
    log_probs, advantages, mask = batch(ROWS)
    first = ROWS * accelerator.process_index
    group = torch.arange(first, first + ROWS) // responses
    rows = Batch(log_probs, advantages, mask, group, rewards=advantages, read_sequences=None, tokenizer=None)
    run = ShardedRun(counted, responses, Options(), Path("unused"))

    def counting(tensor: torch.Tensor, *given: Any) -> None:
        counted.bytes += tensor.nbytes
        if not isinstance(accelerator, Alone):
            all_reduce(tensor, *given)

    def call() -> None:
        counted.bytes = 0
        run._reweight(rows)

    dist.all_reduce = counting
    memory = peak_bytes(call, "cpu") / 2**20  # before memory that is free again is there
    return cpu_seconds(call, rounds), memory, counted.bytes


def process(rank: int, processes: int, real: bool, responses: int, rounds: int, folder: str) -> None:
    """One of several processes; the first writes what it measured."""
    torch.set_num_threads(1)
    if real and processes > 1:
        dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
        accelerate_needs = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1"}
        os.environ.update({name: str(value) for name, value in accelerate_needs.items()}, MASTER_PORT="0")
    reweight(*batch(8, 256))  # what PyTorch loads when it is used for the first time
    found = measured(Accelerator(cpu=True) if real else Alone(processes), responses, rounds)
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")


def weights(_: int, groups: int, rounds: int, folder: str) -> None:
    """Seconds and peak bytes of reweight, in a process of its own."""
    torch.set_num_threads(1)
    log_probs, advantages, mask = batch(8 * groups)
    group = torch.arange(8 * groups) // 8

    def call() -> None:
        reweight(log_probs, advantages, mask, group)

    reweight(*batch(8, 256))
    memory = peak_bytes(call, "cpu")
    torch.save((cpu_seconds(call, rounds), memory, int(mask.sum()), mask.numel()), f"{folder}/found.pt")


def spawned(function: Callable[..., None], processes: int, *given: Any) -> Any:
    """What the function wrote, in new processes, whose memory is fresh."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(function, (*given, folder), processes)
        return torch.load(Path(folder) / "found.pt")


def over_processes(processes: int, responses: int, rounds: int) -> tuple[float, float, int]:
    real = processes <= 8
    return spawned(process, processes if real else 1, processes, real, responses, rounds)


def calculate(nanoseconds: float, of_place: float, of_place_gathered: float) -> None:
    """A thousand GPUs, from the cost of a token and of a place in the batch, in seconds and bytes."""
    own = 64 * 8192
    every = 1024 * own
    print(f"\nA training step of 1.5 billion parameters takes {1e9 * STEP_OF_1_5B:.0f} nanoseconds a token and GPU,")
    print(f"the weights {nanoseconds:.0f}: {nanoseconds / (1e9 * STEP_OF_1_5B):.2%}.")
    print("\n| where the weights are computed | tokens in a process | seconds | GiB |")
    print("|---|---:|---:|---:|")
    rows = (
        ("TRL, ms-swift: whole groups", own, of_place),
        ("TRL, ms-swift: groups spread over processes", every, of_place_gathered),
        ("verl, OpenRLHF: the trainer's process", every, of_place),
    )
    for name, tokens, size in rows:
        print(f"| {name} | {tokens:,} | {nanoseconds * tokens / 1e9:.2f} | {size * tokens / GIB:.2g} |")
    of_verl = sum(VERL.values())
    print(f"\nverl's trainer itself holds {of_verl} bytes a token there: {of_verl * every / GIB:.1f} GiB.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4, 8, 64, 256, 1024])
    parser.add_argument("--groups", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, 1 thread\n")

    print("| groups of 8 responses | tokens | seconds | nanoseconds per token | bytes per position |")
    print("|---:|---:|---:|---:|---:|")
    for groups in given.groups:
        seconds, memory, tokens, places = spawned(weights, 1, groups, given.rounds)
        nanoseconds, of_place = 1e9 * seconds / tokens, memory / places
        print(f"| {groups} | {tokens:,} | {seconds:.4f} | {nanoseconds:.0f} | {of_place:.1f} |", flush=True)

    columns = " | ".join(f"{name}: seconds | MiB | bytes" for name in PROMPTS)
    print(f"\n| processes | {columns} |\n|---:|{'---:|' * 3 * len(PROMPTS)}")
    for processes in given.processes:
        rounds = given.rounds if processes < 100 else 1
        found = [over_processes(processes, responses, rounds) for responses in PROMPTS.values()]
        cells = [f"{seconds:.3f} | {memory:.0f} | {size:,}" for seconds, memory, size in found]
        print(f"| {processes} | {' | '.join(cells)} |", flush=True)
    calculate(nanoseconds, of_place, found[1][1] * 2**20 / (processes * ROWS * WIDTH))


if __name__ == "__main__":
    main()
