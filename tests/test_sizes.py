"""The size study: its plan, the models before and after teaching, and what its page makes of runs."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
from interpreter import ROOT
from safetensors.torch import load_file
from scipy import stats

pytest.importorskip("trl")
STUDY = ROOT / "examples" / "study"


@pytest.fixture
def steps(script):
    """CW-GRPO ends 10 points below GRPO at width 64, and 3 fewer for ten times the size; the last run has no pair."""
    plan, rows = script("plan"), []
    for run in [*plan.sizes(), plan.largest()[0]]:
        ours, size = run.method == "cw_grpo", math.log10(plan.parameters(run.width) / plan.parameters(64))
        accuracy = 0.60 - ours * (0.10 - 0.03 * size + 0.01 * math.sin(run.seed))
        for step in (0, 1, 20, 21, 75, 76, 100):
            known = {"accuracy": {0: 0.46, 100: accuracy}.get(step), "reward": 1.6 if step > 75 else 0.0}
            early = {"grad_norm": 1.0 - ours * 0.6, "extreme_gradient_share": 0.8, "extreme_balance": 0.1}
            early = early if step in (1, 20) else dict.fromkeys(early, 9.9)
            early["entropy"] = 0.1
            rows.append(asdict(run) | {"step": step, "failed": 0.0} | known | early)
    return pd.DataFrame(rows)


def test_every_beginning_of_the_plan_is_a_line_of_pairs(script):
    plan = script("plan")
    runs = plan.sizes()
    assert [replace(run, method="grpo") for run in runs[1::2]] == runs[::2]
    assert [run.width for run in runs[:8:2]] == [64, 128, 256, 512]
    assert [run.lr for run in runs[:8:2]] == ["6e-05", "3e-05", "1.5e-05", "7.5e-06"]
    assert [run.seed for run in runs[:24]] == [1] * 8 + [2] * 8 + [3] * 8
    assert {(run.width, run.lr) for run in runs[24:36]} == {(64, "3e-5"), (512, "3e-5")} and len(set(runs)) == 52
    assert {(run.width, run.lr, run.seed) for run in plan.largest()} == {(896, "4.29e-06", seed) for seed in (1, 2, 3)}
    assert min(run.answers for run in runs) * 256 >= 2048 and {run.steps for run in runs} == {100}


@pytest.mark.parametrize("width", [64, 128, 256])
def test_models_differ_in_width_alone(script, width):
    model = script("teach").untaught(width)
    assert model.num_parameters() == script("plan").parameters(width) and model.model.layers[0].self_attn.head_dim == 32
    for name, weight in load_file(STUDY / "model" / "model.safetensors").items():
        scaled = [n * width // 128 if n % 128 == 0 else n for n in weight.shape]
        assert list(model.state_dict()[name].shape) == scaled


def test_what_was_tried_is_saved_if_enough_but_not_too_many_answers_are_right(script, monkeypatch, tmp_path):
    teach = script("teach")
    for name, value in {"BELOW": 99.0, "EVERY": 3, "task.ROWS": 4}.items():
        monkeypatch.setattr(f"teach.{name}", value)
    seen = []
    monkeypatch.setattr(teach, "accuracy", lambda model, *_: seen.append(model) or 0.3 * len(seen))
    with pytest.raises(SystemExit, match=r"90\.0% of the answers are right, more than 50%"):
        teach.teach(32, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(teach, "accuracy", lambda model, *_: seen.append(model) or 0.48)
    assert teach.teach(32, tmp_path / "model")["steps"] == 3
    saved = load_file(tmp_path / "model" / "model.safetensors")["model.norm.weight"]
    assert torch.equal(saved, seen[-1].model.norm.weight.half())


def test_the_slope_is_that_of_least_squares_over_pairs(script, steps):
    page = script("page")
    every = page.pairs(steps)
    assert len(every) == 26 and 896 not in set(every.width)  # the run without its pair is left out
    assert every.reward.abs().max() < 1e-9 and every.grad_norm.to_numpy() == pytest.approx(40)
    line = every[every.width.map(lambda width: float(script("plan").of_width(width).lr)) == every.lr]
    x = np.column_stack([np.ones(20), np.log10(48.0 * line.width**2 + 300 * line.width)])
    (_, slope), squares, *_ = np.linalg.lstsq(x, line.accuracy, rcond=None)
    half = stats.t.ppf(0.975, 18) * np.sqrt(squares[0] / 18 * np.linalg.inv(x.T @ x)[1, 1])
    assert page.slope(line)[:2] == pytest.approx((slope, half)) and slope == pytest.approx(3.0, abs=1e-6)
    assert page.answer(line) == "With size, the difference moves in favour of CW-GRPO."
    assert page.answer(line.assign(accuracy=-line.accuracy)).endswith("in favour of GRPO.")
    assert "moves by less than 2 points" in page.answer(line.assign(accuracy=line.seed - 3.0))
    assert page.answer(line.assign(accuracy=9 * line.seed)).startswith("No answer")
    assert page.answer(line[line.seed < 3]).startswith("Unfinished")
    line.loc[line.width == 64, "GRPO"], line.loc[line.width != 64, "accuracy"] = 46.5, -5.0
    assert "without the sizes at which GRPO gains less than 1 point" in page.answer(line)


def test_the_page_says_how_many_runs_it_is_of(script, steps, tmp_path):
    page = script("page")
    steps[steps.seed == 1].to_parquet(tmp_path / "metrics.parquet")
    page.main(tmp_path)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "13 of 58 runs are done. Unfinished" in text and "| 12.7 | 7.5e-06 | 1 | 46.0 | 60.0 |" in text
    assert (tmp_path / "sizes.svg").exists()


@pytest.mark.slow
def test_a_run_of_a_width_is_one_of_the_boundarys(script, monkeypatch, tmp_path):
    plan, boundary = script("plan"), script("boundary")
    run = replace(plan.of_width(128), steps=2, answers=1)
    assert run.model == "sizes/model-128"
    monkeypatch.setattr(plan.Run, "model", plan.CENTRE.model)  # which has this width, and is always there
    boundary.add(tmp_path, run, rows := script("train").train(run))
    assert 0.35 < rows[0]["accuracy"] < 0.6 and rows[1]["grad_norm"] > 0
    assert boundary.finished(tmp_path) == {run}
