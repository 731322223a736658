"""The two studies: their task, their plan, their variants of the weights, and the tables made from their results."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from interpreter import ROOT
from scipy import stats

STUDY = ROOT / "examples" / "study"
BOUNDARY = STUDY / "boundary"


def test_the_task_has_right_answers_and_holds_problems_out_in_either_order(script):
    task = script("task")
    splits = task.split_problems()
    products = {name: [tuple(sorted(problem)) for problem in problems] for name, problems in splits.items()}
    held_out = products["test"] + products["tune"]
    assert len(set(held_out)) == 512 and not set(held_out) & set(products["train"])
    assert len(set(held_out) | set(products["train"])) == 90 * 91 / 2  # all there are
    rng, ways = random.Random(0), set()
    for a, b in splits["train"][:500]:
        pattern = r"<think>(\d+)\+(\d+)=(\d+)</think>\\boxed\{(\d+)\}"
        first, second, total, answer = map(int, re.fullmatch(pattern, task.response((a, b), rng)).groups())
        assert first + second == total == answer == a * b
        ways.add((first >= second, {first, second} == {a * (b % 10), a * (b // 10 * 10)}))
    assert len(ways) == 4


def test_held_out_problems_are_asked_twice_and_graded_by_the_reward(script, tmp_path):
    from cw_plugin.rewards import compute_score

    task = script("task")
    task.write_problems(tmp_path)
    rows = pq.read_table(tmp_path / "test.parquet").to_pylist()
    a, b = task.split_problems()["test"][0]
    assert [row["prompt"][0]["content"] for row in rows[:2]] == [f"{a}*{b}"] * 2
    for answer, right in ((a * b, 1.0), (a * b + 1, 0.0)):
        text = f"<think>0+{answer}={answer}</think>\\boxed{{{answer}}}"
        score = compute_score(rows[0]["data_source"], text, rows[0]["reward_model"]["ground_truth"], opens_think=False)
        assert (score["acc"], score["format"]) == (right, 1.0)


@pytest.mark.parametrize("name", ["width_2", "width_3", "width_4", "negative", "positive", "shuffled"])
def test_a_kernel_changes_what_it_says(name, script):
    script("variants")
    from cw_plugin.weights import reweight

    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(6, 9, generator=generator).mul(3).exp() + 1
    a = torch.randn(6, generator=generator)
    mask = torch.arange(9)[None] < torch.tensor([9, 3, 5, 9, 1, 7])[:, None]
    result, _ = reweight(log_probs, a, mask.int(), None, f"variants:{name}")
    x, a = log_probs[mask].double().numpy(), a[:, None].expand(6, 9)[mask].double().numpy()
    c = (x - x.mean()) * (a - a.mean())
    width = int(name[-1]) if name.startswith("width") else 1
    acts = {"negative": c < 0, "positive": c > 0}.get(name, True)
    w = np.where(acts, np.exp(-(c**2) / (2 * (width * c.std()) ** 2)), 1.0)
    got, expected = result[mask].double().numpy() / a, w / w.mean()
    if name == "shuffled":
        assert not np.allclose(got, expected, rtol=0.1)
        got, expected = np.sort(got), np.sort(expected)
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_the_search_takes_the_best_mean_of_two_validations(script, tmp_path, monkeypatch):
    module = script("study")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    best = {job: 0.3 for job in module.search()}
    settings = [("grpo", "1e-4"), ("clip_cov", "1e-5"), ("clip_cov_0.02", "3e-5"), ("cw_grpo", "3e-5")]
    best |= {module.Job("search", method, lr, 0, module.SEARCH_STEPS): 0.4 for method, lr in settings}
    rows = []
    for job, mean in best.items():
        for step, accuracy in ((0, 0.9), (50, mean - 0.2), (75, None), (100, mean + 0.2)):
            rows.append({name: getattr(job, name) for name in module.KEY} | {"step": step, "accuracy": accuracy})
    pd.DataFrame(rows).to_parquet(tmp_path / "metrics.parquet")
    assert module.chosen()[:4] == settings
    assert module.finished(module.KEY) == {job[:4] for job in best}


def line(file: Path, begins: str, title: str = "") -> list[str]:
    """The cells of the first row of a page that begins so, after a title."""
    rest = file.read_text("utf-8").split(f"**{title}**", 1)[1] if title else file.read_text("utf-8")
    (found, *_) = [text for text in rest.splitlines() if text.startswith(f"| {begins} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_the_studys_tables_are_what_its_runs_say():
    page, metrics = STUDY / "results" / "README.md", pd.read_parquet(STUDY / "results" / "metrics.parquet")
    compared = metrics[metrics.phase.isin(["main", "long"]) & (metrics.step <= 200)].astype({"reward": float})
    ends = compared[compared.step == 200].pivot(index="seed", columns="method", values="accuracy").astype(float) * 100
    assert len(ends) == 5 and ends.notna().all(axis=None)
    t = stats.t.ppf(0.975, 4)
    for method, name in {"grpo": "GRPO", "cw_grpo": "CW-GRPO (prompt group)", "cw_grpo_loss": "CW-GRPO, loss"}.items():
        reward = compared[(compared.method == method) & (compared.step > 175)].groupby("seed").reward.mean()
        cells = line(page, name, "Methods, mean and 95% interval over seeds")
        assert cells[2] == f"{ends[method].mean():.1f} ± {t * ends[method].sem():.1f}"
        assert cells[3] == f"{reward.mean():.3f} ± {t * reward.sem():.3f}"
    rewards = compared[compared.step > 175].groupby(["seed", "method"]).reward.mean().unstack()
    p = {}
    for other in ("grpo", "clip_cov", "clip_cov_0.005", "cw_grpo_batch", "cw_grpo_loss"):
        for what, values in (("accuracy", ends), ("reward", rewards)):
            p[what, other] = stats.ttest_rel(values.cw_grpo, values[other]).pvalue
    order = sorted(p, key=p.__getitem__)
    holm = np.maximum.accumulate([p[key] * (10 - place) for place, key in enumerate(order)])[
        order.index(("accuracy", "grpo"))
    ]
    less = ends.cw_grpo - ends.grpo
    cells = line(page, "GRPO", "CW-GRPO (prompt group) less each other method")
    assert cells[1] == f"{less.mean():+.1f} ± {t * less.sem():.1f} (p {holm:.3f})"
    long = metrics[(metrics.phase == "long") & (metrics.method == "grpo")].set_index("step")
    cells = line(page, "GRPO", "Reward and entropy of the long runs")
    assert cells[-1] == f"{long.reward.loc[901:].mean():.3f} ({long.entropy.loc[901:].mean():.3f})"
    tokens = pd.read_parquet(STUDY / "results" / "covariance.parquet").query("method == 'grpo' and covariance > 0")
    sizes = np.sort(np.repeat(tokens.covariance, tokens["count"]))[::-1]
    mean = float(line(page, "20.00%", "Table 1: covariance of tokens, GRPO")[2])
    assert mean == pytest.approx(sizes[: round(0.2 * len(sizes))].mean(), rel=2e-3)


def test_the_boundarys_tables_are_what_its_runs_say():
    page, metrics = BOUNDARY / "results" / "README.md", pd.read_parquet(BOUNDARY / "results" / "metrics.parquet")
    settings = ["lr", "updates", "stale", "temperature", "wrong", "bits", "fillers"]
    ends = metrics[(metrics.step == 100) & (metrics.limit == 1)].astype({"accuracy": float})
    cells = ends[ends.method.isin(["grpo", "cw_grpo"])].pivot(
        index=[*settings, "seed"], columns="method", values="accuracy"
    )
    less = ((cells.cw_grpo - cells.grpo) * 100).unstack("seed")
    assert less.shape == (24, 5)
    p = np.sort(stats.ttest_1samp(less, 0, axis=1).pvalue)  # nan, where both have nothing left, comes last
    holm = np.maximum.accumulate(np.nan_to_num(p, nan=1) * np.arange(24, 0, -1))
    text = page.read_text("utf-8").split("**Every setting**")[1].split("**All settings")[0]
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("|")][2:]
    shown = sorted(float(row[6].replace("&lt; ", "")) for row in rows if row[6] != "-")
    np.testing.assert_allclose(shown, np.clip(holm, 0, 1)[: len(shown)], atol=6e-4)
    assert sum(value < 0.05 for value in shown) == 10
    centre = less.loc[("3e-5", 16, 1, 1.0, 0, 32, 0)]
    found = next(row for row in rows if row[0] == "updates 16")
    assert found[5] == f"{centre.mean():+.1f} ± {stats.t.ppf(0.975, 4) * centre.sem():.1f}"
    fell = 0
    for _, run in metrics[(metrics.method == "cw_grpo") & (metrics.limit == 1)].groupby([*settings, "seed"]):
        validations = run.sort_values("step").accuracy.dropna()
        fell += validations.max() - validations.iloc[-1] > 0.1
    assert line(page, "CW-GRPO", "All settings together")[1:3] == ["120", str(fell)]
    first = pd.read_parquet(BOUNDARY / "results" / "first_wrong.parquet")
    assert line(page, "first wrong token")[2] == f"{first.grpo[0] / first.grpo[:3].sum() * 100:.1f}"


def test_the_plan_is_the_plan(script):
    plan = script("plan")
    runs = plan.runs()
    assert len(set(plan.POINTS)) == 24 and len(set(runs)) == len(runs) == 349
    assert script("boundary").finished(BOUNDARY / "results") == set(runs)  # none is done again


def test_a_run_is_added_as_a_whole(script, tmp_path):
    plan, boundary = script("plan"), script("boundary")
    rows = [{"step": 0, "accuracy": 0.5}, {"step": 1, "reward": 1.25, "accuracy": 0.25, "failed": 0.0}]
    boundary.add(tmp_path, plan.CENTRE, rows)
    boundary.add(tmp_path, replace(plan.CENTRE, seed=2), rows[:1])
    assert boundary.finished(tmp_path) == {plan.CENTRE, replace(plan.CENTRE, seed=2)}
    written = pq.read_table(tmp_path / "metrics.parquet")
    settings = [name for name in written.schema.names if name not in ("width", "answers")]  # those came later
    assert settings == pq.read_schema(BOUNDARY / "results" / "metrics.parquet").names
    assert written["reward"].to_pylist()[1] == 1.25 and written["accuracy"].to_pylist() == [0.5, 0.25, 0.5]
