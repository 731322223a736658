"""The table of examples/invariance: what it measures has known answers, and its page says what it measured."""

import importlib
import json
import sys

import pytest
from interpreter import ROOT

from cw_plugin.registry import BUILT_IN, load

OWN = """
def mean_over_the_micro_batch(old_log_prob, log_prob, advantages, response_mask, config, **_):
    return -(advantages * log_prob * response_mask).sum(1).mean(), {}
"""


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "invariance"))
    yield importlib.import_module("table")
    for name in ("table", "batches"):
        sys.modules.pop(name, None)


def test_a_mean_over_the_micro_batch_grows_with_their_number(table, tmp_path, monkeypatch):
    """k means of equally many rows add up to k means of all; verl averages over ranks, so those change nothing."""
    (tmp_path / "losses.py").write_text(OWN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    own = "losses:mean_over_the_micro_batch"
    found = table.changes(table.measured("verl", "^loss: (own|vanilla)$", own, several=(1, 2)))
    assert [found["loss: own"][f"{k} micro"] for k in (2, 4, 16)] == pytest.approx([1, 3, 15], rel=1e-6)
    assert max(found["loss: own"][case] for case in ("2 ranks", "left", "right", "order", "again")) < table.EXACT
    assert len(found["loss: vanilla"]) == 10 and max(found["loss: vanilla"].values()) < table.EXACT


@pytest.mark.slow
def test_trl_and_skyrl_with_micro_batches_of_one_row(table):
    """There, the mean over a micro-batch's tokens is that of a response, so both aggregations are the same."""
    for host, of_micro_batch, of_response in (
        ("trl", "loss: bnpo", "loss: grpo"),
        ("skyrl", "aggregation: token_mean_legacy", "aggregation: sequence_mean"),
    ):
        found = table.measured(host, f"^({of_micro_batch}|{of_response})$", several=(1,))
        one, other = found[of_micro_batch, "16 micro", 0], found[of_response, "whole", 0]
        assert (one - other).norm() < 1e-6 * other.norm()
        assert table.changes(found)[of_micro_batch]["16 micro"] > 0.1


def test_every_weighting_is_a_row_of_every_host_that_has_what_it_needs(table):
    results = json.loads(table.RESULTS.read_text())
    for host in table.HOSTS:
        has_entropies = host not in ("openrlhf", "skyrl")
        served = {name for name in BUILT_IN if has_entropies or not load(name).needs_entropies}
        assert served == {row.partition(": ")[2] for row in results[host] if row.startswith("weights")}, host


def test_the_page_has_the_results_and_a_reason_for_each_change(table):
    page = table.PAGE.read_text()
    assert table.with_tables(page, json.loads(table.RESULTS.read_text())) == page
    assert "not known" not in page.split(table.BEGIN)[1].split(table.END)[0]
