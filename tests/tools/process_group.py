"""One process of several, joined by gloo, for test_sharded.py.

Its trainer has what our code asks of those of TRL and ms-swift. Each case is computed on the CPU, and on a device that
accepts no tensor of the CPU in its messages.

    python -m torch.distributed.run --nproc_per_node N process_group.py FOLDER
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pretend_device
import pytest
import torch
from accelerate import Accelerator
from pretend_device import Pretend, on_device
from random_batches import random_batch, random_entropies

from cw_plugin import sharded
from cw_plugin.batch import Batch
from cw_plugin.errors import CWGRPOError
from cw_plugin.options import Options
from cw_plugin.records.write import LIMIT
from cw_plugin.registry import BUILT_IN, weighting
from cw_plugin.trial import LENGTHS
from cw_plugin.weights import Group

RESPONSES = 4  # to a prompt
WIDTH, PADDING = 20, 2
CASES = {  # rows of each process, scope
    "whole groups": (8, "group"),
    "groups across processes": (6, "group"),
    "scope batch": (8, "batch"),
}
FAULTS = ("NaN in two processes", "NaN and infinity", "too large", "weighting", "no memory")


STEP = 7


def whole_batch(rows: int) -> list[torch.Tensor]:
    """Log-probs, advantages and mask of ``rows`` rows, whose last columns are padding."""
    log_probs, advantages, mask, _ = random_batch(30, groups=1, responses=rows, width=WIDTH)
    mask[:, -PADDING:] = False
    return [log_probs, advantages, mask]


def whole_entropies(rows: int) -> torch.Tensor:
    return random_entropies(30, torch.Size([rows, WIDTH]), scale=0.3)


def of_process(values: torch.Tensor, rank: int, rows: int) -> torch.Tensor:
    """The rows of a process, which has padded them less than the first."""
    part = values[rank * rows : (rank + 1) * rows]
    return part if values.ndim == 1 else part[:, : WIDTH - rank]


@weighting(scaled=True)
def fails_in_the_last_process(group: Group) -> torch.Tensor:
    is_last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
    if is_last and len(group.z) != sum(LENGTHS):  # it passes the trial
        raise ValueError("not on this node")
    return torch.ones(len(group.z))


def put(fault: str, batch: list[torch.Tensor]) -> None:
    """A fault into rows of the first process and of the last, or into all."""
    log_probs, advantages, mask = batch
    mask[[1, -2], 0] = True
    if fault == "NaN in two processes":
        log_probs[[1, -2], 0] = float("nan")
    if fault == "NaN and infinity":
        log_probs[-2, 0], advantages[1] = float("-inf"), float("nan")
    if fault == "too large":
        advantages.copy_(3.4e38 * advantages.sign())


def compute(accelerator: Accelerator, rows: int, scope: Any, fault: str, weights: str, device: bool) -> Any:
    """What this process gets: its rows, the statistics and the records; or the error."""
    rank, batch = accelerator.process_index, whole_batch(rows * accelerator.num_processes)
    put(fault, batch)
    run = sharded.ShardedRun(accelerator, RESPONSES, Options(scope, weights), Path("unused"))
    log_probs, advantages, mask = (of_process(values, rank, rows) for values in batch)
    own = torch.arange(rank * rows, rank * rows + rows)
    entropies = of_process(whole_entropies(rows * accelerator.num_processes), rank, rows)
    mine = [log_probs, advantages, mask, entropies]
    responses = (own[:, None] + log_probs).int()

    def sequences(chosen: range) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(own[row].repeat(rank + 1), responses[row]) for row in chosen]

    *three, entropies = on_device(mine) if device else mine
    group = own // RESPONSES  # on the CPU, where the hosts number them
    own_batch = Batch(*three, group, own.float(), sequences, tokenizer=None, entropies=entropies)
    with pytest.MonkeyPatch.context() as patch:
        if fault == "no memory" and rank == accelerator.num_processes - 1:
            patch.setattr("cw_plugin.run.apply_weighting", Mock(side_effect=MemoryError("for 8 GiB\nof 4")))
        try:
            applied = run._apply_to_batch(own_batch, STEP, keeps_weights=True)
        except CWGRPOError as error:
            return type(error).__name__, str(error)
    records = []
    if weights == "gaussian":
        kept = replace(own_batch, weights=applied.weights)
        records = [recorded(run, kept, applied.sums, limit) for limit in (LIMIT, 1)]
    return applied.advantages, applied.sums.statistics(), records


def recorded(run: Any, batch: Batch, sums: Any, limit: int) -> Any:
    """What would be written of this batch: log-probs, prompts, responses, and how many groups and tokens there are."""
    run._files = Mock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded, "LIMIT", limit)
        run._record(1, batch, sums)
    if not run._files.write.called:
        return None
    ((_, written, of_sums), _) = run._files.write.call_args
    sequences = [
        (prompt.tolist(), len(response)) for prompt, response in written.read_sequences(range(len(written.group)))
    ]
    log_probs, mask, rewards = written.log_probs, written.response_mask, written.rewards
    return log_probs, mask, written.group, rewards, sequences, of_sums.groups, of_sums.tokens, written.weights


def main(folder: Path) -> None:
    accelerator = Accelerator(cpu=True)
    found = {}
    for device in (False, True):
        with Pretend(), pytest.MonkeyPatch.context() as patch:
            if device:
                pretend_device.as_nccl(patch)
            for case, (rows, scope) in CASES.items():
                for weights in BUILT_IN:
                    found[case, weights, device] = compute(accelerator, rows, scope, "", weights, device)
                for fault in FAULTS:
                    weights = "process_group:fails_in_the_last_process" if fault == "weighting" else "gaussian"
                    found[case, fault, device] = compute(accelerator, rows, scope, fault, weights, device)
    torch.save(found, folder / f"{accelerator.process_index}.pt")
    os._exit(0)  # gloo's threads abort the process now and then, if the group is taken down while they finish


if __name__ == "__main__":
    main(Path(sys.argv[1]))
