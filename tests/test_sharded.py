"""Rows that several real processes hold, against one process that holds them all."""

import pytest

pytest.importorskip("accelerate")

import itertools
import math

import torch
from interpreter import ROOT, python
from process_group import CASES, FAULTS, RESPONSES, STEP, WIDTH, of_process, put, whole_batch, whole_entropies

from cw_plugin.errors import CWGRPOError
from cw_plugin.registry import BUILT_IN
from cw_plugin.reweight import reweight


def in_one_process(rows: int, scope: str, fault: str = "", weights: str = "gaussian"):
    """The weighted advantages and the statistics of all rows, or the error."""
    batch = whole_batch(rows)
    put(fault, batch)
    group = torch.arange(rows) // RESPONSES if scope == "group" else None
    try:
        return reweight(*batch, group, weights, whole_entropies(rows), STEP)
    except CWGRPOError as error:
        return type(error).__name__, str(error)


def check_records(case: str, records, weighted, rank: int, processes: int) -> None:
    """The first process writes the rows of all. If they have more tokens than a record, and each process holds whole
    groups, it writes its own."""
    if rank > 0:
        assert records == [None, None]
        return
    rows, scope = CASES[case]
    all_rows = rows * processes
    log_probs, advantages, mask = whole_batch(all_rows)
    for record, recorded_rows in zip(records, [all_rows, rows if case == "whole groups" else all_rows], strict=True):
        found_log_probs, found_mask, group, rewards, sequences, groups, tokens, found_weights = record
        valid = mask[:recorded_rows]
        assert torch.equal(found_mask != 0, valid)
        assert torch.equal(found_log_probs[valid], log_probs[:recorded_rows][valid])
        assert torch.equal(found_weights * advantages[:recorded_rows, None], weighted[:recorded_rows])
        assert torch.equal(group, torch.arange(recorded_rows) // RESPONSES)
        assert torch.equal(rewards, torch.arange(float(recorded_rows)))
        for row, (prompt, width) in enumerate(sequences):
            rank_of_row = row // rows
            assert prompt == [row] * (rank_of_row + 1) and width == WIDTH - rank_of_row
        assert tokens == mask.sum()
        assert groups == (math.ceil(all_rows / RESPONSES) if scope == "group" else 1)  # of three processes, one is cut


def check_fault(case: str, fault: str, said: set[tuple[str, str]], processes: int) -> None:
    rows, scope = CASES[case]
    assert len(said) == 1, (case, fault, said)
    ((error, message),) = said
    if fault == "weighting":
        assert error == "OptionsError" and "raised ValueError: not on this node; mend it" in message
    elif fault == "no memory":
        assert message == f"process {processes - 1} failed with MemoryError: for 8 GiB"
    else:
        assert (error, message) == in_one_process(rows * processes, scope, fault), (case, fault)


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_reweight_as_one_and_fail_together(tmp_path, processes):
    """Whatever fails in one of them: none waits for one that has stopped, and all say the same."""
    arguments = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes)
    environment = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    result = python(*arguments, ROOT / "tests" / "tools" / "process_group.py", tmp_path, **environment)
    assert result.returncode == 0, result.stderr[-4000:]
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(processes)]
    for case, weights in itertools.product(CASES, BUILT_IN):
        rows, scope = CASES[case]
        weighted, statistics = in_one_process(rows * processes, scope, weights=weights)
        for device, rank in itertools.product((False, True), range(processes)):
            of_rank, of_all, records = found[rank][case, weights, device]
            assert torch.equal(of_rank, of_process(weighted, rank, rows)), (case, weights, rank)
            assert vars(of_all) == pytest.approx(vars(statistics), rel=1e-9)
            if weights == "gaussian":
                check_records(case, records, weighted, rank, processes)
    for case, fault, device in itertools.product(CASES, FAULTS, (False, True)):
        check_fault(case, fault, {of_rank[case, fault, device] for of_rank in found}, processes)
