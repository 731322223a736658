"""Token records, against tokens written out one by one; and what tables and figures make of them."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from reference import reference_weights
from transformers import AutoTokenizer

from cw_plugin import recording
from cw_plugin.recording import Batch, TokenFiles
from cw_plugin.reports.covariance import extremes, one_side
from cw_plugin.reports.records import TokenRecord, read_tokens, tokens_of
from cw_plugin.weights import reweight

TOKENIZER = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "examples" / "cpu" / "model")


def random_batch(seed: int, rows: int = 24, time: int = 60) -> Batch:
    """Groups of six, their rows scattered; masks with holes; what stands off the mask does not matter."""
    g = torch.Generator().manual_seed(seed)
    log_probs = -torch.rand(rows, time, generator=g).pow(4) * 8
    mask = torch.rand(rows, time, generator=g) < 0.7
    log_probs[~mask] = float("nan")
    group = torch.randperm(rows, generator=g) % (rows // 6)
    prompts = [torch.tensor(TOKENIZER.encode(f"{number}+1=")) for number in group.tolist()]
    responses = torch.randint(0, len(TOKENIZER), (rows, time), generator=g)
    return Batch(
        log_probs,
        torch.randn(rows, generator=g),
        mask,
        group,
        torch.rand(rows, generator=g),
        lambda chosen: [(prompts[row], responses[row]) for row in chosen],
    )


def recorded(folder: Path, batch: Batch, step: int = 1, scope: str = "group", kernel: str = "gaussian") -> TokenRecord:
    files = TokenFiles(folder, scope, kernel, logging.getLogger("test"))
    files.write(step, batch, TOKENIZER)
    files.finish()
    (record,) = read_tokens(folder)
    return record


def expected(batch: Batch, scope: str) -> dict[tuple[int, int], tuple[float, float, float]]:
    """(row, position) -> c, w and w~ in float64."""
    group = batch.group if scope == "group" else torch.zeros_like(batch.group)
    arguments = (batch.log_probs, batch.advantages, batch.response_mask, group)
    weights, groups = reference_weights(*(tensor.tolist() for tensor in arguments))
    found = {}
    for number in group.unique().tolist():
        places = [(i, t) for i in (group == number).nonzero()[:, 0].tolist() for t in range(60) if arguments[2][i, t]]
        x = np.array([arguments[0][place].item() for place in places])
        a = np.array([arguments[1][i].item() for i, _ in places])
        c = (x - x.mean()) * (a - a.mean())
        w = np.exp(-(c**2) / (2 * groups[number]["sigma"] ** 2))
        found |= {place: (c[n], w[n], weights[place[0]][place[1]]) for n, place in enumerate(places)}
    return found


@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("kernel", ["gaussian", "none"])
def test_a_record_holds_every_token_with_what_the_weights_did(tmp_path, scope, kernel):
    batch = random_batch(1)
    record = recorded(tmp_path, batch, 7, scope, kernel)
    assert (record.step, record.scope, record.kernel) == (7, scope, kernel)
    assert (record.groups, record.tokens) == (4, int(batch.response_mask.sum()))
    assert record.prompts == {group: f"{group}+1=" for group in range(4)}
    rows = record.table.to_pylist()
    tokens = expected(batch, scope)
    assert len(rows) == len(tokens)
    order = [(row["group"], row["row"], row["position"]) for row in rows]
    assert order == sorted(order)
    for row in rows:
        i, t = row["row"], row["position"]
        c, w, weight = tokens[i, t]
        assert row["group"] == batch.group[i] and row["token_id"] == batch.sequences([i])[0][1][t]
        assert row["text"] == TOKENIZER.decode([row["token_id"]])
        assert row["log_prob"] == batch.log_probs[i, t] and row["advantage"] == batch.advantages[i]
        assert row["reward"] == batch.rewards[i]
        assert row["covariance"] == pytest.approx(c, rel=1e-4, abs=1e-5)
        assert row["kernel"] == pytest.approx(w, abs=1e-4)
        assert row["weight"] == pytest.approx(weight if kernel == "gaussian" else 1, abs=1e-3)


def test_the_recorded_weights_are_those_that_were_trained_on(tmp_path):
    batch = random_batch(2)
    table = recorded(tmp_path, batch).table
    weighted, _ = reweight(batch.log_probs, batch.advantages, batch.response_mask, batch.group)
    at = weighted[table["row"].to_numpy(), table["position"].to_numpy()].numpy()
    assert table["weight"].to_numpy() * table["advantage"].to_numpy() == pytest.approx(at, rel=1e-4, abs=1e-6)


def test_of_a_large_batch_whole_groups_are_drawn(tmp_path, monkeypatch):
    batch = random_batch(3, rows=120)
    sizes = {g: int(batch.response_mask[batch.group == g].sum()) for g in range(20)}
    monkeypatch.setattr(recording, "LIMIT", 1500)
    drawn = []
    for step in range(1, 30):
        record = recorded(tmp_path / str(step), batch, step)
        held = dict(zip(*np.unique(record.table["group"].to_numpy(), return_counts=True), strict=True))
        assert held == {group: sizes[group] for group in held}  # none is cut
        assert 1500 - max(sizes.values()) < record.table.num_rows <= 1500
        assert (record.groups, record.tokens) == (20, sum(sizes.values()))
        assert set(record.prompts) == set(held)
        drawn.append(frozenset(held))
    assert len(set(drawn)) > 10 and frozenset.union(*drawn) == set(range(20))
    monkeypatch.setattr(recording, "LIMIT", 5)
    assert len(set(recorded(tmp_path / "one", batch).table["group"].to_pylist())) == 1


def test_a_folder_that_cannot_be_written_is_said_in_the_log(tmp_path, caplog):
    (tmp_path / "tokens").write_text("a file in the place of the folder")
    files = TokenFiles(tmp_path, "group", "gaussian", logging.getLogger("test"))
    files.write(3, random_batch(0), TOKENIZER)
    files.finish()
    assert "tokens/step_000003.parquet cannot be written" in caplog.text and "Traceback" not in caplog.text


@pytest.mark.parametrize("sign", [1, -1])
def test_shares_and_means_of_a_side_are_those_of_its_tokens(tmp_path, sign):
    batches = [random_batch(4), random_batch(5)]
    files = TokenFiles(tmp_path, "group", "gaussian", logging.getLogger("test"))
    for step, batch in enumerate(batches, 1):
        files.write(step, batch, TOKENIZER)
    files.finish()
    c = np.array([c for batch in batches for c, _, _ in expected(batch, "group").values()])
    own = np.sort(sign * c[sign * c > 0])[::-1]
    side = one_side(tokens_of(read_tokens(tmp_path)), sign)
    assert side.tokens.iloc[-1] == len(own)
    assert side["size"].to_numpy() == pytest.approx(own, rel=1e-4, abs=1e-6)
    assert side.held.to_numpy() == pytest.approx(np.cumsum(own), rel=1e-4)
    for count in (1, 40, len(own)):
        threshold, mean = extremes(side, count / len(own))
        assert threshold == pytest.approx(own[count - 1], rel=1e-4)
        assert mean == pytest.approx(own[:count].mean(), rel=1e-4)
    assert all(map(math.isnan, extremes(side, 0.5 / len(own))))


def test_a_record_that_fails_is_logged_and_the_trainers_tensors_may_change(tmp_path, caplog):
    class Broken:
        def batch_decode(self, _):
            raise TypeError("this tokenizer is broken")

    files = TokenFiles(tmp_path, "group", "gaussian", logging.getLogger("test"))
    batch = random_batch(6)
    files.write(1, batch, Broken())
    files.finish()
    assert "this tokenizer is broken" in caplog.text and not list(tmp_path.rglob("*.parquet"))

    before = batch.sequences([3])[0][1].clone()
    files._writer.submit(time.sleep, 1)  # so that the next record is written after the trainer has gone on
    files.write(2, batch, TOKENIZER)
    for row in range(24):
        batch.sequences([row])[0][1].fill_(7)
    files.finish()
    (record,) = read_tokens(tmp_path)
    of_row = record.table.filter(pc.equal(record.table["row"], 3))
    assert of_row["token_id"].to_pylist() == before[of_row["position"].to_numpy().copy()].tolist()


def test_the_batches_of_a_step_are_read_in_their_order(tmp_path):
    files = TokenFiles(tmp_path, "group", "gaussian", logging.getLogger("test"))
    sizes = []
    for seed in range(11):
        batch = random_batch(seed)
        files.write(50, batch, TOKENIZER)
        sizes.append(int(batch.response_mask.sum()))
    files.finish()
    assert [record.tokens for record in read_tokens(tmp_path)] == sizes and len(set(sizes)) > 5
