"""Token records, against tokens written out one by one."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import random_batches
import token_records
import torch
from pretend_device import DEVICE, Pretend, back, on_device
from random_batches import random_entropies
from reference import reference_advantages
from token_records import files_in
from transformers import AutoTokenizer

from cw_plugin.batch import Batch
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.reports.read_records import TokenRecord, read_tokens
from cw_plugin.options import Options
from cw_plugin.records import write
from cw_plugin.registry import BUILT_IN
from cw_plugin.reweight import reweight
from cw_plugin.run import Run
from cw_plugin.statistics import Sums

TOKENIZER = AutoTokenizer.from_pretrained(Path(__file__).parents[2] / "examples" / "cpu" / "model")


def random_batch(seed: int, groups: int = 4) -> Batch:
    """Groups of six, their rows scattered; masks with holes; what stands off the mask does not matter."""
    log_probs, advantages, mask, group = random_batches.random_batch(seed, groups, width=60, holes=0.3)
    log_probs[~mask] = float("nan")
    g = torch.Generator().manual_seed(seed)
    padding = [TOKENIZER.pad_token_id]  # which a prompt's text leaves out
    prompts = [torch.tensor(padding + TOKENIZER.encode(f"{number}+1=")) for number in group.tolist()]
    responses = torch.randint(0, len(TOKENIZER), mask.shape, generator=g)

    def sequences(chosen: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(prompts[row], responses[row]) for row in chosen]

    return Batch(log_probs, advantages, mask, group, torch.rand(len(mask), generator=g), sequences, TOKENIZER)


def recorded(folder: Path, batch: Batch, step: int, scope: str = "group", weights: str = "gaussian") -> TokenRecord:
    token_records.write(files_in(folder, scope, weights), step, batch)
    (record,) = read_tokens(folder)
    return record


def column_of(batch: Batch, row: int, position: int) -> int:
    """Where a token stands in the padded row: positions count from the response's first token."""
    return batch.response_mask[row].tolist().index(True) + position


def expected(batch: Batch, scope: str = "group") -> dict[tuple[int, int], tuple[float, float, float]]:
    """(row, column) -> c, w and w~ in float64."""
    number = batch.group if scope == "group" else torch.zeros_like(batch.group)
    _, groups = reference_advantages(batch.log_probs, batch.advantages, batch.response_mask, number)
    columns = ("places", "c", "w", "weights")
    tokens = (zip(*(of_group[name] for name in columns), strict=True) for of_group in groups.values())
    return {place: values for place, *values in itertools.chain.from_iterable(tokens)}


@pytest.mark.parametrize("is_padded", [True, False])
@pytest.mark.parametrize(("scope", "weights"), [("group", "gaussian"), ("batch", "none")])
def test_a_record_holds_every_token_with_what_the_weights_did(tmp_path, scope, weights, is_padded):
    batch = random_batch(1)
    batch = replace(batch, log_probs=batch.log_probs.bfloat16())  # as some models compute them
    if not is_padded:
        batch.response_mask[:] = True
        batch.log_probs.nan_to_num_()
    record = recorded(tmp_path, batch, 7, scope, weights)
    assert (record.step, record.scope, record.weights) == (7, scope, weights)
    assert (record.groups, record.tokens) == (4, int(batch.response_mask.sum()))
    assert record.prompts == {group: f"{group}+1=" for group in range(4)}
    rows, tokens = record.table.to_pylist(), expected(batch, scope)
    order = [(row["group"], row["row"], row["position"]) for row in rows]
    assert len(rows) == len(tokens) and order == sorted(order)
    for row in rows:
        i, t = row["row"], column_of(batch, row["row"], row["position"])
        c, w, weight = tokens[i, t]
        assert row["group"] == batch.group[i] and row["token_id"] == batch.read_sequences([i])[0][1][t]
        assert row["text"] == TOKENIZER.decode([row["token_id"]])
        assert row["log_prob"] == batch.log_probs[i, t] and row["advantage"] == batch.advantages[i]
        assert row["reward"] == batch.rewards[i]
        assert row["covariance"] == pytest.approx(c, rel=1e-4, abs=1e-5)
        assert row["gaussian"] == pytest.approx(w, abs=1e-4)
        assert row["weight"] == pytest.approx(weight if weights == "gaussian" else 1, abs=1e-3)


@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("weights", BUILT_IN)
def test_a_record_shows_the_weights_that_were_applied(tmp_path, scope, weights):
    """Also where they are drawn, by the first step. The batch is on a device, with gradients and a mask of numbers."""
    batch = random_batch(1)
    x, a, mask, group = 4 * batch.log_probs, batch.advantages, 3 * batch.response_mask, batch.group
    h = random_entropies(1, x.shape, scale=0.3)
    expected, _ = reweight(x, a, mask, group if scope == "group" else None, weights, h, 7)
    run = Run(Options(scope, weights, record_every=2), tmp_path)
    with Pretend():
        there = on_device(vars(replace(batch, log_probs=x, response_mask=mask, entropies=h)))
        there |= {"read_sequences": lambda rows: on_device(batch.read_sequences(rows))}
        there["log_probs"].requires_grad_()
        applied = run.reweight(Batch(**there), 7, 4).advantages
    if weights == "none":
        assert applied is None
    else:
        assert applied.device == DEVICE and torch.equal(back(applied), expected)
    (record,) = read_tokens(tmp_path)
    assert (record.step, record.weights, record.settings) == (8, weights, run.options.settings)
    assert record.prompts == {number: f"{number}+1=" for number in range(4)}
    assert (record.groups, record.table.num_rows) == (4, batch.response_mask.sum())
    responses = [response for _, response in batch.read_sequences(range(len(mask)))]
    for row in record.table.to_pylist():
        column = column_of(batch, row["row"], row["position"])
        of_run = expected[row["row"], column].item()
        assert (row["token_id"], row["reward"]) == (responses[row["row"]][column], batch.rewards[row["row"]])
        assert row["weight"] * row["advantage"] == pytest.approx(of_run, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("scope", ["group", "batch"])
def test_a_group_counts_from_its_first_token_on(tmp_path, scope):
    """Of the four, one has no token, and one a single one."""
    batch = random_batch(5)
    mask, log_probs = batch.response_mask.clone(), batch.log_probs.nan_to_num()
    mask[batch.group < 2] = False
    mask[(batch.group == 1).nonzero()[0], 0] = True
    record = recorded(tmp_path, replace(batch, log_probs=log_probs, response_mask=mask), 1, scope)
    assert record.groups == 3 and set(record.table["group"].to_pylist()) == set(record.prompts) == {1, 2, 3}


def test_a_part_of_a_batch_is_recorded_with_the_size_of_the_whole(tmp_path):
    batch = random_batch(6)
    part = replace(batch, weights=torch.ones(batch.response_mask.shape))
    files_in(tmp_path).write(1, part, Sums(tokens=9000, groups=40))
    (record,) = read_tokens(tmp_path)
    assert (record.groups, record.tokens) == (40, 9000) and set(record.prompts) == {0, 1, 2, 3}
    assert record.started.endswith("+00:00")  # in UTC


def test_of_a_large_batch_whole_groups_are_drawn(tmp_path, monkeypatch):
    batch = random_batch(3, groups=20)
    sizes = {g: int(batch.response_mask[batch.group == g].sum()) for g in range(20)}
    monkeypatch.setattr(write, "LIMIT", 1500)
    drawn = []
    for step in range(1, 30):
        record = recorded(tmp_path / str(step), batch, step)
        held = dict(zip(*np.unique(record.table["group"].to_numpy(), return_counts=True), strict=True))
        assert held == {group: sizes[group] for group in held}  # none is cut
        assert 1500 - max(sizes.values()) < record.table.num_rows <= 1500
        assert (record.groups, record.tokens) == (20, sum(sizes.values()))
        assert set(record.prompts) == set(held)
        drawn.append(frozenset(held))
    assert set(recorded(tmp_path / "again", batch, step).prompts) == drawn[-1]  # the step is the seed
    assert len(set(drawn)) > 10 and frozenset.union(*drawn) == set(range(20))
    record, tokens = recorded(tmp_path / "batch", batch, 1, "batch"), expected(batch, "batch")
    assert record.table.num_rows < len(tokens) and record.groups == 20  # what is left out still counts in the weights
    for row in record.table.to_pylist():
        c, w, weight = tokens[row["row"], column_of(batch, row["row"], row["position"])]
        assert (row["covariance"], row["gaussian"]) == pytest.approx((c, w), rel=1e-4, abs=1e-4)
        assert row["weight"] == pytest.approx(weight, abs=1e-3)
    monkeypatch.setattr(write, "LIMIT", len(tokens))
    assert recorded(tmp_path / "all", batch, 1).table.num_rows == len(tokens)
    monkeypatch.setattr(write, "LIMIT", 5)
    record = recorded(tmp_path / "one", batch, 1)
    assert len(set(record.table["group"].to_pylist())) == 1


def test_records_of_weights_that_were_lost_are_left_out(tmp_path):
    """The first start recorded steps 10, 20 (two batches) and 50; the second went on after step 10, and reached 30
    (eleven batches, which stay in order)."""
    for steps in ((10, 20, 20, 50), (20, *[30] * 11)):
        files = files_in(tmp_path)
        time.sleep(0.002)  # starts are told apart by the millisecond
        batches = [random_batch(number) for number in range(len(steps))]
        for step, batch in zip(steps, batches, strict=True):
            token_records.write(files, step, batch)
    records = read_tokens(tmp_path)
    assert [record.step for record in records] == [10, 20, *[30] * 11]
    assert [record.tokens for record in records[1:]] == [batch.response_mask.sum() for batch in batches]
    assert [record.step for record in read_tokens(tmp_path, [20])] == [20]
    with pytest.raises(DataError, match="has records of step 10, 20, 30; --steps names none of them"):
        read_tokens(tmp_path, [50])


def test_a_record_that_fails_is_said_in_the_log(tmp_path, caplog):
    (tmp_path / "tokens").write_text("a file in the place of the folder")
    files = files_in(tmp_path)
    batch = random_batch(0)
    token_records.write(files, 2, replace(batch, response_mask=torch.zeros_like(batch.response_mask)))
    assert not caplog.records  # there is nothing to record
    token_records.write(files, 3, batch)
    assert "tokens/step_000003.parquet cannot be written" in caplog.text and "Traceback" not in caplog.text
    files = files_in(tmp_path / "broken")
    tokenizer = SimpleNamespace(decode=str, batch_decode=lambda sequences: sequences.text)
    token_records.write(files, 1, replace(batch, tokenizer=tokenizer))
    assert "has no attribute 'text'" in caplog.text and not list(tmp_path.rglob("*.parquet"))
