"""Rows that several real processes hold, against one process that holds them all."""

import pytest
import torch
from interpreter import ROOT, python
from process_group import CASES, FAULTS, RESPONSES, of_process, put, whole_batch

from cw_plugin.errors import CWGRPOError
from cw_plugin.weights import reweight


def in_one_process(rows: int, scope: str, fault: str = ""):
    """The weighted advantages and the statistics of all rows, or the error."""
    batch = whole_batch(rows)
    put(fault, batch)
    group = torch.arange(rows) // RESPONSES if scope == "group" else None
    try:
        return reweight(*batch, group)
    except CWGRPOError as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_weigh_as_one_and_fail_together(tmp_path, processes):
    """Whatever fails in one of them: none waits for one that has stopped, and all say the same."""
    arguments = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes)
    environment = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    result = python(*arguments, ROOT / "tests" / "process_group.py", tmp_path, timeout=200, **environment)
    assert result.returncode == 0, result.stderr[-4000:]
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(processes)]
    for case, (rows, scope) in CASES.items():
        weighted, statistics = in_one_process(rows * processes, scope)
        for device in (False, True):
            for rank in range(processes):
                of_rank, of_all = found[rank][case, "", device]
                assert torch.equal(of_rank, of_process(weighted, rank, rows)), (case, rank)
                assert vars(of_all) == pytest.approx(vars(statistics), rel=1e-6)
            for fault in FAULTS:
                said = {found[rank][case, fault, device] for rank in range(processes)}
                assert len(said) == 1, (case, fault, said)
                ((error, message),) = said
                if fault == "kernel":
                    assert error == "OptionsError" and "raised ValueError: not on this node; mend it" in message
                elif fault == "no memory":
                    assert message == f"process {processes - 1} failed with MemoryError: for 8 GiB"
                else:
                    assert (error, message) == in_one_process(rows * processes, scope, fault), (case, fault)
