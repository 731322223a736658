"""The study's own parts: its task, the variants of its ablation, and that what is written agrees with the results."""

from __future__ import annotations

import importlib
import random
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from reference import reference_weights

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "examples" / "study"


@pytest.fixture
def study(monkeypatch):
    """Imports a script of the study by its name."""
    monkeypatch.syspath_prepend(str(STUDY))
    names = ("task", "study", "report", "ablation")
    for name in names:
        sys.modules.pop(name, None)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def test_the_task_holds_no_wrong_answer_and_no_problem_twice(study):
    task = study("task")
    splits = task.split_problems()
    assert sum(map(len, splits.values())) == 90 * 90 == len(set().union(*splits.values()))
    rng = random.Random(0)
    ways = set()
    for a, b in splits["train"][:500]:
        text = task.response((a, b), rng)
        first, second, total, answer = map(
            int, re.fullmatch(r"<think>(\d+)\+(\d+)=(\d+)</think>\\boxed\{(\d+)\}", text).groups()
        )
        assert first + second == total == answer == a * b
        ways.add((first >= second, {first, second} == {a * (b % 10), a * (b // 10 * 10)}))
    assert len(ways) == 4


def test_held_out_problems_are_asked_twice_and_graded_by_the_reward(study, tmp_path):
    from cw_plugin.rewards import compute_score

    task = study("task")
    task.write_problems(tmp_path)
    rows = pq.read_table(tmp_path / "test.parquet").to_pylist()
    assert [row["prompt"][0]["content"] for row in rows[:2]] == ["{}*{}".format(*task.split_problems()["test"][0])] * 2
    a, b = task.split_problems()["test"][0]
    for answer, right in ((a * b, 1.0), (a * b + 1, 0.0)):
        text = f"<think>0+{answer}={answer}</think>\\boxed{{{answer}}}"
        score = compute_score(rows[0]["data_source"], text, rows[0]["reward_model"]["ground_truth"], opens_think=False)
        assert (score["acc"], score["format"]) == (right, 1.0)


def plain_weights(log_probs, advantages, variant):
    """The variants once more, token by token."""
    x, a = (values - (0 if variant == "uncentred" else values.mean()) for values in (log_probs, advantages))
    c = x * a
    w = np.array([np.exp(-(value**2) / (2 * c.var())) for value in c])
    return w if variant == "unnormalised" else w / w.mean()


@pytest.mark.parametrize("variant", ["uncentred", "unnormalised", "shuffled"])
def test_a_variant_of_the_ablation_changes_what_it_says(variant, study, monkeypatch):
    monkeypatch.setenv("VARIANT", variant)
    from cw_plugin.verl_integration import estimator
    from cw_plugin.weights import reweight_responses

    monkeypatch.setattr(estimator, "reweight_responses", reweight_responses)  # put back after the test
    ablation = study("ablation")
    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(6, 9, generator=generator)
    advantages = torch.randn(6, generator=generator)
    mask = torch.arange(9)[None] < torch.tensor([9, 3, 5, 9, 1, 7])[:, None]
    group = torch.tensor([0, 1, 0, 1, 0, 1])
    result, statistics = estimator.reweight_responses(
        log_probs, advantages, mask.int(), group, "gaussian", observe=None
    )
    assert estimator.reweight_responses is ablation.reweight
    assert (result[~mask] == 0).all()
    papers = np.array(
        reference_weights(log_probs.tolist(), advantages.tolist(), mask.int().tolist(), group.tolist())[0]
    )
    after = 0.0
    for number in (0, 1):
        tokens = mask & (group == number)[:, None]
        x, a = log_probs[tokens].double().numpy(), advantages[:, None].expand(6, 9)[tokens].double().numpy()
        got = result[tokens].numpy() / a
        if variant == "shuffled":
            np.testing.assert_allclose(np.sort(got), np.sort(papers[tokens.numpy()]), rtol=1e-5)
        else:
            np.testing.assert_allclose(got, plain_weights(x, a, variant), rtol=1e-5)
        assert not np.allclose(got, papers[tokens.numpy()], rtol=0.1)
        after += ((x - x.mean()) * got * a).sum()
    assert statistics.covariance_after == pytest.approx(after / int(mask.sum()), rel=1e-4)


def test_what_is_written_is_what_the_results_give(study, tmp_path):
    """The page and the README's section, written anew from the committed results."""
    report = study("report")
    results, covariance = report.read_results(report.RESULTS), report.read_covariance(report.RESULTS)
    assert report.with_headline(report.README.read_text(encoding="utf-8"), results) == report.README.read_text("utf-8")
    report.write_page(tmp_path, results, covariance)
    written = {path.name for path in report.RESULTS.iterdir()} - {"metrics.parquet", "covariance.parquet"}
    assert {path.name for path in tmp_path.iterdir()} == written
    assert (tmp_path / "README.md").read_text("utf-8") == (report.RESULTS / "README.md").read_text("utf-8")
