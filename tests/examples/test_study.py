"""The two studies: their task, their plan, their variants of the weights, and the tables made from their results."""

import random
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from interpreter import ROOT
from scipy import stats

from cw_plugin.lab.intervals import holm

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
    from cw_plugin.lab.rewards import compute_score

    task = script("task")
    task.write_problems(tmp_path)
    rows = pq.read_table(tmp_path / "test.parquet").to_pylist()
    a, b = task.split_problems()["test"][0]
    assert [row["prompt"][0]["content"] for row in rows[:2]] == [f"{a}*{b}"] * 2
    for answer, right in ((a * b, 1.0), (a * b + 1, 0.0)):
        text = f"<think>0+{answer}={answer}</think>\\boxed{{{answer}}}"
        score = compute_score(rows[0]["data_source"], text, rows[0]["reward_model"]["ground_truth"], opens_think=False)
        assert (score["acc"], score["format"]) == (right, 1.0)


def test_a_kernel_is_what_its_name_says(script):
    variants, z = script("variants"), torch.linspace(-5, 5, 42)
    w = torch.exp(-(z**2) / 2)
    for width in (2, 3, 4):
        torch.testing.assert_close(getattr(variants, f"width_{width}")(z), torch.exp(-(z**2) / (2 * width**2)))
    torch.testing.assert_close(variants.negative(z), torch.where(z < 0, w, 1))
    torch.testing.assert_close(variants.positive(z), torch.where(z > 0, w, 1))
    shuffled = variants.shuffled(z)
    torch.testing.assert_close(shuffled.sort().values, w.sort().values)
    assert not torch.allclose(shuffled, w)


def test_the_search_takes_the_best_mean_of_two_validations(script, tmp_path, monkeypatch):
    study = script("study")
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    best = [("grpo", "1e-4"), ("clip_cov", "1e-5"), ("clip_cov_0.02", "3e-5"), ("cw_grpo", "3e-5")]
    for job in study.search():
        accuracy = (0.9, 0.4, None, 0.4) if (job.method, job.lr) in best else (0.9, 0.0, None, 0.6)
        run = pd.DataFrame({"step": (0, 50, 75, 100), "accuracy": accuracy})
        study.append(tmp_path / "metrics.parquet", run.assign(**dict(zip(study.KEY, job, strict=False))))
    assert study.chosen()[:4] == best
    assert study.finished(study.KEY) == {job[:4] for job in study.search()}


def table(page: Path, title: str) -> pd.DataFrame:
    """A page's table, with the first column as index."""
    text = page.read_text("utf-8").split(f"**{title}**\n\n")[1].split("\n\n")[0]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return pd.DataFrame(rows, columns=header).set_index(header[0])


def mean(values: pd.Series, digits: int = 1, sign: str = "") -> str:
    half = stats.t.ppf(0.975, len(values) - 1) * values.sem()
    return f"{values.mean():{sign}.{digits}f} ± {half:.{digits}f}"


@pytest.mark.parametrize(
    "module, write, study",
    [
        ("report", "study_page", "."),
        ("report", "boundary_page", "boundary"),
        ("page", "main", "sizes"),
        ("curves", "main", "entropy"),
    ],
)
def test_the_committed_tables_are_those_that_the_script_writes(script, tmp_path, module, write, study):
    """That they are right is for the tests of each study."""
    committed = STUDY / study / "results"
    for file in committed.glob("*.parquet"):
        shutil.copy(file, tmp_path)
    getattr(script(module), write)(tmp_path)
    written, expected = ((folder / "README.md").read_text("utf-8") for folder in (tmp_path, committed))
    assert written.splitlines()[3:] == expected.splitlines()[3:]  # the third line is a link to the study's folder
    assert {path.name for path in tmp_path.glob("*.svg")} == {path.name for path in committed.glob("*.svg")}


def test_the_studys_tables_are_what_its_runs_say():
    page, metrics = STUDY / "results" / "README.md", pd.read_parquet(STUDY / "results" / "metrics.parquet")
    runs = metrics[metrics.phase.isin(["main", "long"])].astype({"accuracy": float, "reward": float})
    accuracy = runs[runs.step == 200].pivot(index="seed", columns="method", values="accuracy") * 100
    reward = runs[runs.step.between(176, 200)].pivot_table(index="seed", columns="method", values="reward")
    assert len(accuracy) == 5 and accuracy.notna().all(axis=None)
    methods = table(page, "Methods, mean and 95% interval over seeds")
    for method, name in {"grpo": "GRPO", "cw_grpo": "CW-GRPO (prompt group)", "cw_grpo_loss": "CW-GRPO, loss"}.items():
        assert methods.loc[name, "accuracy, %"] == mean(accuracy[method])
        assert methods.loc[name, "reward, last 25 steps"] == mean(reward[method], 3)
    others = ["grpo", "clip_cov", "clip_cov_0.005", "cw_grpo_batch", "cw_grpo_loss"]
    p = {(what, other): stats.ttest_rel(ends.cw_grpo, ends[other]).pvalue
         for what, ends in (("accuracy", accuracy), ("reward", reward)) for other in others}  # fmt: skip
    less = table(page, "CW-GRPO (prompt group) minus each other method").loc["GRPO", "accuracy, points"]
    assert less == f"{mean(accuracy.cw_grpo - accuracy.grpo, 1, '+')} (p {holm(p)['accuracy', 'grpo']:.3f})"
    long = runs[(runs.phase == "long") & (runs.method == "grpo") & (runs.step > 900)]
    shown = table(page, "Reward and entropy of the long runs").loc["GRPO", "step 1000"]
    assert shown == f"{long.reward.mean():.3f} ({long.entropy.mean():.3f})"
    tokens = pd.read_parquet(STUDY / "results" / "covariance.parquet").query("method == 'grpo' and covariance > 0")
    sizes = np.sort(np.repeat(tokens.covariance, tokens["count"]))[::-1]
    shown = table(page, "Table 1: covariance of tokens, GRPO").loc["20.00%", "positive mean"]
    assert float(shown) == pytest.approx(sizes[: round(0.2 * len(sizes))].mean(), rel=2e-3)


def test_the_boundarys_tables_are_what_its_runs_say():
    page, metrics = BOUNDARY / "results" / "README.md", pd.read_parquet(BOUNDARY / "results" / "metrics.parquet")
    settings = ["lr", "updates", "stale", "temperature", "wrong", "bits", "fillers"]
    runs = metrics[(metrics.limit == 1) & metrics.method.isin(["grpo", "cw_grpo"])].astype({"accuracy": float})
    ends = runs[runs.step == 100].pivot(index=[*settings, "seed"], columns="method", values="accuracy") * 100
    less = (ends.cw_grpo - ends.grpo).unstack("seed")
    assert less.shape == (24, 5)
    p = holm(dict(enumerate(stats.ttest_1samp(less, 0, axis=1).pvalue)), 24)  # nan, where both have nothing left
    every = table(page, "Every setting")
    shown = sorted(float(value.replace("&lt; ", "")) for value in every.p if value != "-")
    np.testing.assert_allclose(shown, sorted(p.values()), atol=6e-4)
    assert sum(value < 0.05 for value in shown) == 10
    shown = every.loc["updates 16", "CW-GRPO minus GRPO, points"]
    assert shown == mean(less.loc[("3e-5", 16, 1, 1.0, 0, 32, 0)], 1, "+")
    validated = runs[runs.method == "cw_grpo"].dropna(subset="accuracy").sort_values("step")
    accuracy = validated.groupby([*settings, "seed"]).accuracy
    together = table(page, "All settings together").loc["CW-GRPO"]
    assert together.runs == "120"
    assert together["collapsed in accuracy"] == str((accuracy.max() - accuracy.last() > 0.1).sum())
    first = pd.read_parquet(BOUNDARY / "results" / "first_wrong.parquet").grpo
    shown = table(page, "Where the gradient is, on the starting model").loc["first wrong token"].iloc[1]
    assert shown == f"{first[0] / first[:3].sum() * 100:.1f}"


def test_a_run_is_added_to_the_committed_ones(script, tmp_path):
    plan, file = script("plan"), Path(shutil.copy(BOUNDARY / "results" / "metrics.parquet", tmp_path))
    assert plan.finished(file) == set(plan.BOUNDARY)  # none is done again
    before, rows = pq.read_schema(file).names, [{"step": 0, "accuracy": 0.5}, {"step": 1, "reward": 1.25}]
    plan.add(file, plan.of_width(64), rows)
    assert plan.finished(file) == {*plan.BOUNDARY, plan.of_width(64)}
    written = pq.read_table(file)
    assert written.schema.names == [*before, "width", "answers", "first", "seconds", "right"]  # which came later
    assert written["accuracy"].to_pylist()[-2:] == [0.5, None] and written["reward"].to_pylist()[-1] == 1.25
