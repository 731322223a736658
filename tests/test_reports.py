"""Tables and figures: known logs and dumps in, exact numbers out; broken folders, one clear sentence."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from typer.testing import CliRunner

from cw_plugin.cli import app
from cw_plugin.errors import ReportError
from cw_plugin.reports import plots, tables
from cw_plugin.reports.distribution import Distribution
from cw_plugin.reports.evaluations import Evaluation, read_evaluations
from cw_plugin.reports.report import collect
from cw_plugin.reports.runs import Run, read_run
from cw_plugin.reports.seeds import is_grpo
from cw_plugin.reports.statistics import (
    average,
    between_lines,
    between_questions,
    between_seeds,
    between_steps,
    paired_difference,
    rise,
    score,
    student,
)
from cw_plugin.reports.verdict import verdict

ROOT = Path(__file__).parents[1]


def write_metrics(folder: Path, steps: dict[int, dict[str, float]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_evaluation(folder: Path, step: int | None, answers: dict[str, list[list[int]]], **settings) -> Path:
    """As eval_benchmarks.sh writes it: for each benchmark and question, the grades of its answers."""
    folder.mkdir(parents=True)
    benchmarks = {name: {"questions": len(questions), "finished": True} for name, questions in answers.items()}
    (folder / "settings.json").write_text(json.dumps({"step": step, "benchmarks": benchmarks, **settings}))
    for name, questions in answers.items():
        rows = [
            {"index": i, "sample": s, "acc": acc} for i, grades in enumerate(questions) for s, acc in enumerate(grades)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def grades(right: int, of: int) -> list[list[int]]:
    return [[int(i < right)] for i in range(of)]


@pytest.fixture
def evaluations(tmp_path) -> Path:
    root = tmp_path / "evaluation"
    write_evaluation(root / "base", None, {"aime24": grades(3, 30), "amc23": grades(20, 40)}, temperature=0.6)
    write_evaluation(root / "GRPO-global_step_100", 100, {"aime24": grades(6, 30), "amc23": grades(21, 40)})
    write_evaluation(root / "GRPO-global_step_200", 200, {"aime24": grades(3, 30), "amc23": grades(20, 40)})
    write_evaluation(root / "CW-GRPO-global_step_200", 200, {"aime24": grades(9, 30), "amc23": grades(30, 40)})
    return root


def run_command(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "300"})
    return result.exit_code, result.stdout + result.stderr


def test_table_2_from_known_answers(evaluations, tmp_path):
    code, printed = run_command("report", evaluations, "--out", tmp_path / "out")
    assert code == 0, printed
    with open(tmp_path / "out" / "table2.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["method", "AIME24", "AMC23", "average", "to base"]
    assert [row[0] for row in rows[1:]] == ["base", "CW-GRPO, step 200", "GRPO, step 200"]
    low, high = stats.binomtest(3, 30).proportion_ci(method="wilson")  # 3.5 to 25.6: Wilson (1927)
    assert rows[1][1] == f"10.0 (3/30) [{100 * low:.1f}, {100 * high:.1f}]" == "10.0 (3/30) [3.5, 25.6]"
    assert rows[1][4] == ""
    assert rows[2][1].startswith("30.0 (9/30)") and rows[2][3].startswith("52.5 ")
    assert rows[2][4] == "+22.5*"  # (20 + 25) / 2
    assert rows[3][4] == "+0.0"

    page = (tmp_path / "out" / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!#)|url\((?!#)|<script|@import', page)  # nothing is fetched
    latex = (tmp_path / "out" / "table2.tex").read_text()
    assert r"CW-GRPO, step 200 & 30.0 (9/30)" in latex and latex.count(r"\\") == 4
    assert (tmp_path / "out" / "report.md").read_text().count("| base |") == 1


def test_the_step_of_table_2_can_be_chosen_and_the_papers_rows_put_beside(evaluations, tmp_path):
    _, printed = run_command("report", evaluations, "--out", tmp_path, "--step", "100", "--paper", "all")
    assert "| GRPO, step 100 | 20.0 (6/30)" in printed and "CW-GRPO, step" not in printed
    # Of the paper's own rows, over these two benchmarks: (30.0 + 77.5) / 2, and (28.8 + 62.9) / 2 for its base.
    assert "| CW-GRPO (reported) | 30.0 | 77.5 | 53.8 | +7.9 |" in printed
    assert "| Qwen2.5-Math-7B-Instruct (reported) | 3.3 | 47.5 | 25.4 |  |" in printed
    code, printed = run_command("report", evaluations, "--out", tmp_path, "--step", "150")
    assert code == 2 and "nothing was evaluated at step 150; there are answers at 200, 100" in printed


def test_table_3_has_the_entropy_of_the_step(evaluations, tmp_path):
    write_metrics(tmp_path / "run", {step: {"actor/entropy": step / 1000} for step in (1, 100, 150, 200)})
    _, printed = run_command("report", evaluations, f"GRPO={tmp_path / 'run'}", "--out", tmp_path / "out")
    assert "| GRPO | 100 | 0.100 | 20.0 (6/30) | 52.5 (21/40) |" in printed
    assert "| GRPO | 200 | 0.200 | 10.0 (3/30) | 50.0 (20/40) |" in printed
    assert "| CW-GRPO | 200 | - | 30.0 (9/30) | 75.0 (30/40) |" in printed


def test_seeds_of_one_name_are_put_together():
    several = [
        Evaluation("GRPO", 10, {"amc23": {"0": [1.0], "1": [0.0]}}),
        Evaluation("GRPO", 10, {"amc23": {"0": [1.0], "1": [1.0]}}),
    ]
    (merged,) = tables.merge_seeds(several)
    assert merged.accuracy["amc23"] == {"0": [1.0, 1.0], "1": [0.0, 1.0]}
    assert score(merged.accuracy["amc23"]).mean == 0.75


def test_verls_validation_dumps(tmp_path):
    folder = tmp_path / "run" / "validation"
    folder.mkdir(parents=True)
    for step, right in ((0, 1), (10, 3)):
        rows = [
            {"input": f"q{i}", "gts": "1", "acc": float(i < right), "step": step} for i in range(4) for _ in range(2)
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rollouts = tmp_path / "run" / "rollouts"  # trainer.rollout_data_dir: the same names, and no grades
    rollouts.mkdir()
    (rollouts / "1.jsonl").write_text(json.dumps({"input": "q", "gts": "1", "score": 1.0}) + "\n")
    before, after = read_evaluations(tmp_path / "run")
    assert (before.name, before.step, after.step) == ("run", 0, 10)
    assert [score(e.accuracy["validation"]).mean for e in (before, after)] == [0.25, 0.75]
    assert score(after.accuracy["validation"]).questions == 4 and score(after.accuracy["validation"]).answers == 8


def test_an_answer_may_hold_a_line_separator_of_unicode(tmp_path):
    rows = [{"input": "q\u2028r", "gts": "1", "acc": 1.0, "output": "a\u2029b\x85c", "step": 3}]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "3.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    (evaluation,) = read_evaluations(tmp_path / "run")
    assert score(evaluation.accuracy["validation"]).answers == 1


def test_intervals_by_question():
    # Answers of one question are not independent: ten each do not narrow the interval of two questions.
    ten_each = {"a": [1.0] * 10, "b": [0.0] * 10}
    assert (score(ten_each).low, score(ten_each).high) == (0.0, 1.0)
    means = np.array([0.0, 0.5, 0.5, 1.0, 1.0])
    answers = {str(i): [min(1.0, 2 * m), max(0.0, 2 * m - 1)] for i, m in enumerate(means)}
    expected = stats.t.interval(0.95, 4, means.mean(), stats.sem(means))
    assert (score(answers).low, score(answers).high) == pytest.approx((expected[0], min(1.0, expected[1])))


def test_no_interval_without_width():
    """That no question, or every one, was answered does not make certain that the next one is."""
    for right in (0.0, 1.0):
        for answers in (1, 16):
            all_alike = {str(i): [right] * answers for i in range(30)}
            expected = stats.binomtest(round(30 * right), 30).proportion_ci(method="wilson")
            for low, high in ((score(all_alike).low, score(all_alike).high), average([all_alike])[1:]):
                assert (low, high) == pytest.approx((expected.low, expected.high))


def test_average_over_benchmarks_is_unweighted_and_its_interval_by_question():
    small, large = ({str(i): [float(i < right)] for i in range(n)} for right, n in ((10, 20), (180, 200)))
    mean, low, high = average([small, large])
    deviation = np.sqrt(0.25 / 20 + 0.09 / 200) / 2
    assert mean == 0.7
    assert (mean - low, high - mean) == pytest.approx((1.96 * deviation, 1.96 * deviation), rel=0.1)


def test_paired_differences():
    ours = {str(i): [1.0] for i in range(20)}
    theirs = {str(i): [float(i >= 8)] for i in range(20)}  # 8 questions differ, all one way
    assert paired_difference([ours], [theirs]) == (pytest.approx(0.4), pytest.approx(2 * 0.5**8))
    assert paired_difference([theirs], [ours])[0] == pytest.approx(-0.4)
    assert paired_difference([ours], [ours]) == (0.0, 1.0)
    # Differences of several sizes: the exact sign-flip test, all 2^10 signs.
    rng = np.random.default_rng(0)
    many = {str(i): list(rng.integers(0, 2, 4).astype(float)) for i in range(10)}
    other = {str(i): list(rng.integers(0, 2, 4).astype(float)) for i in range(10)}
    differences = np.array([np.mean(many[q]) - np.mean(other[q]) for q in many])
    signs = np.array(np.meshgrid(*[[-1, 1]] * 10)).reshape(10, -1)
    exact = np.mean(np.abs(differences @ signs) >= abs(differences.sum()) - 1e-12)
    assert paired_difference([many], [other])[1] == pytest.approx(exact, abs=0.02)


def test_methods_are_compared_over_seeds():
    ours = [(1, 0.50), (2, 0.60), (3, 0.55), (4, 0.58)]
    theirs = [(4, 0.66), (3, 0.60), (1, 0.57), (2, 0.69)]  # the same seeds, in another order
    paired = stats.ttest_rel([0.50, 0.60, 0.55, 0.58], [0.57, 0.69, 0.60, 0.66])
    found = between_seeds(ours, theirs)
    assert (found.value, found.sample, found.of_methods) == (pytest.approx(-0.0725), "paired by seed", True)
    assert (found.low, found.high) == pytest.approx(tuple(paired.confidence_interval()))
    assert found.p == pytest.approx(paired.pvalue)
    for others in ([(5, 0.66), (3, 0.60), (1, 0.57)], [(None, 0.66), (None, 0.60), (None, 0.57)]):
        welch = stats.ttest_ind([0.50, 0.60, 0.55, 0.58], [0.66, 0.60, 0.57], equal_var=False)
        found = between_seeds(ours, others)
        assert found.sample == "by seed, Welch's t" and found.p == pytest.approx(welch.pvalue)
        assert (found.low, found.high) == pytest.approx(tuple(welch.confidence_interval()))
    assert between_seeds(ours, theirs[:1]) is None
    # Two seeds that differ alike, or not at all, do not make a method certain.
    assert between_seeds(ours[:2], [(s, v - 0.1) for s, v in ours[:2]]) is None and between_seeds(ours, ours) is None
    assert between_seeds([(1, 0.5), (2, 0.5)], [(3, 0.4), (4, 0.4)]) is None
    alone = between_seeds([(None, value) for _, value in ours])
    known = stats.ttest_1samp([0.50, 0.60, 0.55, 0.58], 0).confidence_interval()
    assert (alone.low, alone.high, alone.sample) == (pytest.approx(known.low), pytest.approx(known.high), "by seed")
    assert math.isnan(student(1.0, math.nan, 3, "").p)


def test_checkpoints_are_compared_over_questions():
    rng = np.random.default_rng(0)
    ours, theirs = ({str(q): list(rng.integers(0, 2, 4) * 1.0) for q in range(30)} for _ in range(2))
    found = between_questions([ours], [theirs])
    test = stats.ttest_rel([np.mean(ours[q]) for q in ours], [np.mean(theirs[q]) for q in ours])
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval())) and not found.of_methods
    # Of two benchmarks: the unweighted mean, whose interval a bootstrap finds as well.
    small = [{str(i): [float(i % 3 == 0)] for i in range(20)}, {str(i): [float(i % 2)] for i in range(20)}]
    large = [{str(i): [float(i % 3 == 0)] for i in range(200)}, {str(i): [float(i % 5 == 0)] for i in range(200)}]
    found = between_questions([small[0], large[0]], [small[1], large[1]])
    each = [np.array([a[q][0] - b[q][0] for q in a]) for a, b in (small, large)]
    draws = [np.mean([rng.choice(differences, len(differences)).mean() for differences in each]) for _ in range(4000)]
    assert found.value == pytest.approx(np.mean([differences.mean() for differences in each]))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, (0.025, 0.975))), abs=0.02)
    one = {"0": [1.0]}  # question in common; none below; then no answer differs
    assert between_questions([small[0], one], [small[1], one]) is None
    assert between_questions([one], [{"other": [1.0]}]) is None and between_questions([ours], [ours]) is None


def test_runs_are_compared_over_blocks_of_steps():
    """Steps that remember the last one: the interval holds the truth nearly as often as it says; a plain t's fails."""
    rng = np.random.default_rng(0)
    steps = np.arange(1, 51)
    held = {"blocks": 0, "plain": 0}
    for _ in range(400):
        noise = np.zeros(51)
        for step in steps:
            noise[step] = 0.7 * noise[step - 1] + rng.normal()
        found = between_steps((steps, 2 + noise[1:]), (steps, np.zeros(50)))
        held["blocks"] += found.low <= 2 <= found.high
        held["plain"] += stats.ttest_1samp(noise[1:], 0).pvalue >= 0.05
    assert held["blocks"] > 0.88 * 400 and held["plain"] < 0.7 * 400
    assert between_steps((steps[:9], steps[:9]), (steps, steps)) is None
    assert between_steps((steps, 3.0 * steps), (steps, 3.0 * steps - 1)) is None  # nothing varies
    found = between_steps((steps, 4.0 * steps), (steps[20:], 3.0 * steps[20:]))  # of the steps that both have
    blocks = np.arange(21, 51).reshape(5, 6).mean(1)
    assert (found.low, found.high) == pytest.approx(tuple(stats.ttest_1samp(blocks, 0).confidence_interval()))


def test_slopes_are_compared_by_their_standard_errors():
    rng = np.random.default_rng(0)
    x = np.arange(1, 41.0)
    curves = [(x, slope * x + rng.normal(size=40)) for slope in (0.5, 0.2)]
    fits = [np.polyfit(*curve, 1, cov=True) for curve in curves]  # by least squares, with the residuals' scatter
    half = 40 * stats.t.ppf(0.975, 76) * np.sqrt(sum(covariance[0, 0] for _, covariance in fits))
    found = between_lines(*curves)
    assert (rise(curves[0]), found.value) == pytest.approx((40 * fits[0][0][0], 40 * (fits[0][0][0] - fits[1][0][0])))
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))
    assert math.isnan(rise((x[:9], x[:9])))
    constant = (x, np.ones(40))
    alone, beside = between_lines(curves[0]), between_lines(curves[0], constant)
    assert beside.value == pytest.approx(alone.value) and beside.low == pytest.approx(
        alone.value - (alone.value - alone.low) * stats.t.ppf(0.975, 76) / stats.t.ppf(0.975, 38)
    )
    assert between_lines(constant) is None and between_lines(constant, constant) is None


METRICS = {1: {"actor/entropy": 0.5, "actor/kl": math.nan}, 2: {"actor/entropy": 0.25, "actor/kl": -math.inf}}


def as_tensorboard(folder: Path, metrics: dict[int, dict[str, float]] = METRICS) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, data in metrics.items():
            for key, value in data.items():
                writer.add_scalar(key, value, step)


def wait_until_written(folder: Path, step: int) -> None:
    """After finish(), W&B's service may still be writing."""
    deadline = time.monotonic() + 60
    found: set[int] = set()
    while step not in found:
        assert time.monotonic() < deadline
        with suppress(ReportError):
            found = {logged for series in read_run(folder).metrics.values() for logged in series}
        time.sleep(0.2)


def as_wandb(folder: Path, metrics: dict[int, dict[str, float]] = METRICS) -> None:
    import wandb

    folder.mkdir()
    run = wandb.init(project="p", dir=str(folder), mode="offline", settings=wandb.Settings(silent=True))
    for step, data in metrics.items():
        run.log(data, step=step)
    run.finish()
    wait_until_written(folder, max(metrics))


def test_without_wandb_its_files_end_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "run-x.wandb").write_bytes(b"")
    empty = tmp_path / "environment"  # a Python that has no packages
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    monkeypatch.setattr(sys, "executable", str(empty / "bin" / "python"))
    with pytest.raises(ReportError, match=r"run-x.wandb .*No module named wandb.*pip install 'wandb>=0.31'"):
        read_run(tmp_path)


def test_a_long_wandb_run_is_read_across_blocks(tmp_path):
    import wandb

    run = wandb.init(project="p", dir=str(tmp_path), mode="offline", settings=wandb.Settings(silent=True))
    steps = {step: {f"metric/{i}": step + i / 100 for i in range(60)} for step in range(1, 101)}
    for step, data in steps.items():
        run.log(data, step=step)
    run.finish()
    assert max(path.stat().st_size for path in tmp_path.rglob("*.wandb")) > 3 * 2**15
    wait_until_written(tmp_path, 100)
    read = read_run(tmp_path).metrics
    assert {step: read["metric/59"][step] for step in steps} == {
        step: data["metric/59"] for step, data in steps.items()
    }


@pytest.mark.parametrize("write", [lambda folder: write_metrics(folder, METRICS), as_tensorboard, as_wandb])
def test_every_logger_gives_the_same_series(write, tmp_path):
    write(tmp_path / "run")
    steps, values = read_run(tmp_path / "run").series("actor/entropy")
    assert (steps.tolist(), values.tolist()) == ([1, 2], [0.5, 0.25])
    assert repr(read_run(tmp_path / "run").series("actor/kl")[1].tolist()) == "[nan, -inf]"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("metrics.0.jsonl", "metrics.jsonl"),  # as the study names them, the quickstart, the recipes
        ("metrics-20261031-235959.jsonl", "metrics.jsonl"),
        ("metrics-20261031-235959.jsonl", "metrics-20261101-000003.jsonl"),
        ("metrics.9.jsonl", "metrics.10.jsonl"),
    ],
)
def test_a_resumed_run_is_one_series(first, then, tmp_path):
    """Also after ``cp -r``, which gives every file the time of the copy, in whatever order."""
    write_metrics(tmp_path / "run", {1: {"x": 1.0}, 2: {"x": 2.0}, 3: {"x": 3.0}})
    (tmp_path / "run" / "metrics.jsonl").rename(tmp_path / "run" / first)
    write_metrics(tmp_path / "run", {3: {"x": 30.0}, 4: {"x": 40.0}})
    (tmp_path / "run" / "metrics.jsonl").rename(tmp_path / "run" / then)
    subprocess.run(["cp", "-r", tmp_path / "run", tmp_path / "copy"], check=True)
    for folder, times in (("run", (1, 2)), ("copy", (2, 1))):
        for name, modified in zip((first, then), times, strict=True):
            os.utime(tmp_path / folder / name, (modified, modified))
        assert read_run(tmp_path / folder).series("x")[1].tolist() == [1.0, 2.0, 30.0, 40.0]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("events.out.tfevents.999999999.host.1.0", "events.out.tfevents.1000000000.host.1.0"),
        ("offline-run-20261031_235959-b/run-b.wandb", "offline-run-20261101_000003-a/run-a.wandb"),
    ],
)
def test_the_name_orders_the_files_of_other_loggers(first, then, tmp_path):
    for step, name in ((1.0, first), (2.0, then)):
        write = as_tensorboard if "tfevents" in name else as_wandb
        written = tmp_path / f"written-{step}"
        write(written, {7: {"x": step}})
        (file,) = (path for path in written.rglob("*") if path.match("*tfevents*") or path.suffix == ".wandb")
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        file.rename(tmp_path / "run" / name)
        os.utime(tmp_path / "run" / name, (100 - step, 100 - step))
    assert read_run(tmp_path / "run").metrics["x"] == {7: 2.0}


@pytest.mark.parametrize(
    "names", [("grpo/metrics.jsonl", "cw_grpo/metrics.jsonl"), ("project/grpo.jsonl", "project/cw_grpo.jsonl")]
)
def test_a_folder_of_several_runs_is_no_run(names, tmp_path):
    """A splice of two methods would be drawn as one curve."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"step": 1, "data": {"x": 1.0}}) + "\n")
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "1.jsonl").write_text(json.dumps({"input": "q", "acc": 1.0}) + "\n")  # no metrics
    with pytest.raises(ReportError, match=r"holds 2 runs .*grpo.* give the folder of each as NAME=FOLDER"):
        read_run(tmp_path)


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    write_metrics(tmp_path / "run", METRICS)
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"step":3,"data":{"actor/ent')
    assert read_run(tmp_path / "run").metrics["actor/entropy"] == {1: 0.5, 2: 0.25}


def test_curves_show_mean_and_band_of_seeds(tmp_path):
    seeds = [[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]
    runs = [
        read_run(f"GRPO={write_metrics(tmp_path / str(i), {s: {'actor/entropy': v} for s, v in enumerate(values, 1)})}")
        for i, values in enumerate(seeds)
    ]
    (figure,) = plots.named(runs, "entropy")
    (axes,) = figure.axes
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [1, 2, 3] and line.get_ydata().tolist() == [2.0, 3.0, 4.0]
    (band,) = axes.collections
    assert sorted({round(y, 6) for y in band.get_paths()[0].vertices[:, 1]})[0] == pytest.approx(
        2 - np.sqrt(2), abs=1e-5
    )
    (figure,) = plots.named(runs, "actor/entropy", window=2)
    assert figure.axes[0].lines[0].get_ydata().tolist() == [2.0, 2.5, 3.5]


def test_forecast_figure_says_the_correlation(tmp_path):
    forecast, change = [-0.1, 0.2, 0.3, -0.4, 0.1], [-0.2, 0.1, 0.5, -0.3, 0.2]
    steps = {
        step: {"cw_grpo/entropy_change": c, "cw_grpo/entropy_forecast": f, "cw_grpo/entropy_forecast_grpo": -f}
        for step, (f, c) in enumerate(zip(forecast, change, strict=True), 2)
    }
    (figure,) = plots.named([read_run(write_metrics(tmp_path / "run", steps))], "forecast")
    r = stats.pearsonr(forecast, change).statistic
    around = stats.pearsonr(forecast[1:], [-0.1, 0.6, 0.2, -0.1]).statistic
    assert [axes.get_title() for axes in figure.axes] == [
        f"{title}: r = {sign * r:.2f}, 5 steps\naround the batch: r = {sign * around:.2f}"
        for title, sign in (("before reweighting", -1), ("after reweighting", 1))
    ]


def test_plot_writes_each_format(tmp_path):
    write_metrics(tmp_path / "run", METRICS)
    formats = ["--format", "png", "--format", "svg", "--format", "pdf"]
    code, printed = run_command("plot", tmp_path / "run", "--out", tmp_path / "figure", *formats)
    assert code == 0 and printed.split() == [str(tmp_path / f"figure.{kind}") for kind in ("png", "svg", "pdf")]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    ElementTree.parse(tmp_path / "figure.svg")
    run_command("plot", tmp_path / "run", "--out", tmp_path / "again", *formats)
    for kind in ("png", "svg", "pdf"):  # so that a figure under version control changes with its numbers alone
        assert (tmp_path / f"again.{kind}").read_bytes() == (tmp_path / f"figure.{kind}").read_bytes()
    code, printed = run_command("plot", tmp_path / "run", "--out", tmp_path / "new" / "entropy-1.5b.svg")
    assert code == 0 and printed.split() == [str(tmp_path / "new" / "entropy-1.5b.svg")]
    (tmp_path / "file").write_text("")
    code, printed = run_command("plot", tmp_path / "run", "--out", tmp_path / "file" / "figure")
    assert code == 2 and "cannot be written" in printed and "Traceback" not in printed


def test_table_1_reads_both_ways(tmp_path):
    covariance = np.array([-4.0, -1.0, 1.0, 2.0, 8.0])
    table = tables.table_1("x", Distribution(covariance, np.ones(5), np.array([10, 90, 80, 19, 1])))
    rows = {row[0]: row[1:5] for row in table.rows}
    assert rows["0.01%"] == ["-"] * 4  # less than a token
    assert rows["1.00%"] == ["8", "8", "-4", "-4"]  # one token of 100
    assert rows["20.00%"] == ["2", "2.3", "-3.67", "-2.5"]  # 8 + 19 x 2 over 20; between the edges at 10 and 100
    assert rows["100.00%"] == ["1", "1.26", "-1", "-1.3"]
    assert table.notes[1] == "x: 100 tokens of positive covariance, 100 of negative."
    assert table.notes[2].endswith(": 0.01%, 1.00%.")  # 0.01 and 1 of 100 tokens; 20 are enough


def write_record(folder: Path, step: int, tokens: int) -> None:
    """As many tokens of positive covariance as of negative."""
    names = ("row", "position", "token_id", "log_prob", "advantage", "reward")
    columns = {name: np.zeros(2 * tokens) for name in names}
    columns |= {"group": np.zeros(2 * tokens, int), "text": ["x"] * (2 * tokens), "kernel": np.ones(2 * tokens)}
    columns |= {"covariance": np.repeat([-1.5, 1.5], tokens), "weight": np.ones(2 * tokens)}
    about = {"step": str(step), "scope": "group", "kernel": "none", "groups": "1", "tokens": str(2 * tokens)}
    table = pa.table(columns).replace_schema_metadata({**about, "prompts": '{"0": "1+1="}'})
    (folder / "tokens").mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "tokens" / f"step_{step:06d}.parquet")


def test_covariance_puts_seeds_and_steps_together(tmp_path):
    for seed in (1, 2):
        for step in (1, 50):
            write_record(tmp_path / str(seed), step, 10 * seed)
    runs = [f"GRPO={tmp_path / '1'}", f"GRPO={tmp_path / '2'}"]
    _, printed = run_command("covariance", *runs)
    assert "GRPO, steps 1, 50 of 2 runs: 60 tokens of positive covariance, 60 of negative." in printed
    _, printed = run_command("covariance", *runs, "--by-step", "--steps", "50")
    assert "GRPO, step 50 of 2 runs: 30 tokens of positive covariance, 30 of negative." in printed
    (tmp_path / "1" / "tokens" / "step_000050.parquet").rename(tmp_path / "1" / "tokens" / "step_000050-2.parquet")
    write_record(tmp_path / "1", 50, 100)  # a step of several batches, in trainer_mode=separate_async
    _, printed = run_command("covariance", *runs, "--by-step", "--steps", "50")
    assert "GRPO, step 50 of 2 runs: 130 tokens of positive covariance, 130 of negative." in printed
    _, printed = run_command("covariance", tmp_path)
    assert "holds 2 runs (1/tokens, 2/tokens)" in printed
    _, printed = run_command("covariance", *runs, "--steps", "2:40")
    assert "has records of step 1, 50, none of them in --steps" in printed


def test_a_report_links_the_tokens_of_every_name_and_survives_a_damaged_record(tmp_path):
    for folder in ("a b", "a_b", "tokens alone", "damaged"):
        if folder != "tokens alone":
            write_metrics(tmp_path / folder, METRICS)
        for step in (1, 50):
            write_record(tmp_path / folder, step, 10)
    (tmp_path / "damaged" / "tokens" / "step_000050.parquet").write_bytes(b"x")
    code, printed = run_command("report", *sorted(tmp_path.iterdir()), "--out", tmp_path / "out")
    assert code == 0 and "damaged: no tokens;" in printed
    page = (tmp_path / "out" / "report.html").read_text()
    for number, name in enumerate(("a b", "a_b", "tokens alone"), 1):
        assert f'<a href="tokens-{number}.html">Tokens of {name} in step 50, with their weights</a>' in page
        assert f"<title>Tokens of {name}</title>" in (tmp_path / "out" / f"tokens-{number}.html").read_text()
    assert "tokens-4" not in page


def test_runs_of_one_name_that_differ_have_columns_of_their_own():
    one, other = {"trainer": {"total_training_steps": 10}}, {"trainer": {"total_training_steps": 3}}
    table = tables.table_5([("GRPO", one), ("GRPO", one), ("GRPO", other)])
    assert table.header == ["", "GRPO", "GRPO", "paper (reported)"]
    assert ["training steps", "10", "3", "100"] in table.rows and "that differ here" in table.notes[-1]


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda path: None, ["report"], "does not exist"),
        (lambda path: path.mkdir(), ["report"], "holds no metrics"),
        (lambda path: path.mkdir(), ["plot"], "holds no metrics"),
        (lambda path: path.mkdir(), ["covariance"], "holds no token record"),
        (lambda path: write_metrics(path, METRICS), ["plot", "--metric", "reward"], "no run logged critic"),
        (lambda path: write_metrics(path, METRICS), ["plot", "--metric", "accuracy"], "no validation accuracy"),
        (lambda path: write_metrics(path, METRICS), ["plot", "--metric", "forecast"], "fewer than three steps"),
        (lambda path: (write_metrics(path, {}) / "a.jsonl").write_text("{\n{}\n"), ["plot"], "line 1 is not JSON"),
        (lambda path: (write_evaluation(path, 1, {"amc23": [[1]]}) / "a.jsonl").write_text("{\n{}\n"), ["report"],
         "line 1 is not JSON"),  # answers there, and a damaged log beside them
        (lambda path: (path.mkdir(), (path / "settings.json").write_text('{"benchmarks": ')), ["report"], "is damaged"),
        (lambda path: write_evaluation(path, 1, {"amc23": []}), ["report"], "is empty"),
        (lambda path: write_evaluation(path, 1, {"amc23": [[1]]}), ["report", "--base", "x"], "no evaluation named x"),
        (lambda path: ((path / "tokens").mkdir(parents=True), (path / "tokens/step_01.parquet").write_bytes(b"PAR")),
         ["covariance"], "cannot be read"),
    ],
)  # fmt: skip
def test_a_bad_folder_ends_in_one_sentence(make, arguments, message, tmp_path):
    make(tmp_path / "run")
    code, printed = run_command(arguments[0], tmp_path / "run", *arguments[1:], "--out", tmp_path / "out")
    assert code == 2 and message in printed and "Traceback" not in printed
    assert printed.count("Error:") == 1 and not (tmp_path / "out").exists()


def test_an_unfinished_evaluation_is_shown_as_such(tmp_path):
    folder = write_evaluation(tmp_path / "base", None, {"amc23": grades(1, 2), "aime24": grades(1, 2)})
    settings = json.loads((folder / "settings.json").read_text())
    settings["benchmarks"]["aime24"]["finished"] = False
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "aime24.jsonl").unlink()
    _, printed = run_command("report", folder, "--out", tmp_path / "out")
    assert "base is not finished on AIME24: run the evaluation again to complete it." in printed


def test_no_run_at_all_is_refused():
    with pytest.raises(ReportError, match="does not exist"):
        read_run("nowhere")


KILLED = """
import os, signal, sys
from pathlib import Path
from cw_plugin import files

def half(path):
    path.write_bytes(Path(sys.argv[1]).read_bytes()[:-10])
    os.kill(os.getpid(), signal.SIGKILL)

files.write_whole(Path(sys.argv[1]), half)
"""


@pytest.mark.parametrize("name", ["settings.json", "amc23.jsonl", "5.jsonl", "metrics.jsonl", "step_000001.parquet"])
def test_a_file_whose_writer_was_killed_is_no_result(name, evaluations, tmp_path):
    """Whatever reads a folder: neither a method, nor a run, nor a step comes of what is there in part."""
    write_metrics(tmp_path / "evaluation" / "run", METRICS)
    write_record(tmp_path / "evaluation" / "run", 1, 10)
    dump = tmp_path / "evaluation" / "run" / "5.jsonl"
    dump.write_text(json.dumps({"input": "q", "gts": "1", "acc": 1.0}) + "\n")
    arguments = [evaluations, f"RUN={tmp_path / 'evaluation' / 'run'}"]
    _, before = run_command("report", *arguments, "--out", tmp_path / "out")
    (victim, *_) = sorted(evaluations.rglob(name))
    whole = victim.read_bytes()
    killed = subprocess.run([sys.executable, "-c", KILLED, victim], cwd=ROOT, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert victim.read_bytes() == whole and any(".part" in path.name for path in victim.parent.iterdir())
    code, after = run_command("report", *arguments, "--out", tmp_path / "out")
    assert code == 0 and after == before and ".part" not in after


def test_hidden_folders_hold_no_results(evaluations, tmp_path):
    """As an earlier version left them after a kill, an editor's, and those of a lighteval that was killed."""
    _, before = run_command("report", evaluations, "--out", tmp_path / "out")
    for hidden in (".part-abc", ".lighteval-xyz/out"):
        write_evaluation(evaluations / "base" / hidden, None, {"amc23": grades(40, 40)})
    code, after = run_command("report", evaluations, "--out", tmp_path / "out")
    assert code == 0 and after == before


@pytest.mark.parametrize("content", ['{"editor.tabSize": 4}', "// a comment\n{}", "[]", "", '"benchmarks"'])
def test_a_settings_file_of_another_program_is_passed_over(content, evaluations, tmp_path):
    _, before = run_command("report", evaluations, "--out", tmp_path / "out")
    (evaluations / "notes").mkdir()
    (evaluations / "notes" / "settings.json").write_text(content)
    code, after = run_command("report", evaluations, "--out", tmp_path / "out")
    assert code == 0 and after == before


def write_config(folder: Path, *overrides: str) -> Path:
    """The configuration that hydra saves, composed by verl's own main_ppo."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [f"trainer.default_local_dir={folder}", *overrides])
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    return folder


def two_runs(tmp_path: Path, first: list[str], second: list[str]) -> list[str]:
    runs = []
    for number, overrides in enumerate((first, second)):
        folder = write_config(tmp_path / f"run{number}", "algorithm.adv_estimator=cw_grpo", *overrides)
        write_metrics(folder, {1: {"actor/entropy": 1.0 + number}, 2: {"actor/entropy": 2.0}})
        write_record(folder, 1, 10)
        runs.append(f"CW={folder}")
    return runs


SEED_1, SEED_2 = ["data.seed=1"], ["data.seed=2"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["+algorithm.cw_grpo.scope=batch"], [], "algorithm.cw_grpo.scope is batch in the first and not set in the"),
        (["trainer.n_gpus_per_node=1"], ["trainer.n_gpus_per_node=2"], "n_gpus_per_node is 1 in the first and 2 in"),
        (["data.max_response_length=64"], ["data.max_response_length=128"], "is 64 in the first and 128 in the second"),
        (["actor_rollout_ref.model.path=/a/b/x"], ["actor_rollout_ref.model.path=/a/b/y"], "is /a/b/x in the first"),
        (["actor_rollout_ref.actor.optim.lr=1e-5", "data.train_batch_size=8"], [], "lr is 1e-05 in the first.*and 1 m"),
        (["data.train_files=[/a/open_rs/train.parquet]"], ["data.train_files=[/a/gsm8k/train.parquet]"], "train_files"),
    ],
)  # fmt: skip
def test_runs_of_one_name_must_be_of_one_method(first, second, message, tmp_path):
    runs = two_runs(tmp_path, [*SEED_1, *first], [*SEED_2, *second])
    code, printed = run_command("report", *runs, "--out", tmp_path / "out")
    assert code == 2 and "both named CW, are not seeds of one method" in printed
    assert re.search(message, printed) and printed.count("Error:") == 1 and not (tmp_path / "out").exists()


def test_every_command_compares_the_runs_of_one_name(tmp_path):
    runs = two_runs(tmp_path, SEED_1, [*SEED_1, "trainer.experiment_name=other"])
    for command in ("report", "plot", "covariance"):
        code, printed = run_command(command, *runs, "--out", tmp_path / "out")
        assert code == 2 and "both named CW, have the same seeds (data.seed=1)" in printed
        code, printed = run_command(command, runs[0], runs[0], "--out", tmp_path / "out")
        assert code == 2 and "run0 is given twice as CW" in printed
        code, printed = run_command(command, runs[0], runs[0].replace("CW=", "GRPO="), "--out", tmp_path / "out")
        assert code == 2 and "run0 is given as CW and as GRPO" in printed
        code, printed = run_command(command, runs[0], runs[1].replace("CW=", "other="), "--out", tmp_path / "out")
        assert code == 0, printed


def test_what_makes_no_method_may_differ_between_seeds(tmp_path):
    may = ["trainer.total_training_steps={n}", "trainer.logger=[console,file]", "trainer.experiment_name=x{n}",
           "trainer.test_freq={n}", "trainer.validation_data_dir=/x/{n}", "trainer.save_freq={n}", "data.seed={n}",
           "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH=/x/{n}",
           "actor_rollout_ref.model.path=/machine-{n}/models/x", "+algorithm.cw_grpo.record_every={n}"]  # fmt: skip
    runs = two_runs(tmp_path, *([text.format(n=n) for text in may] for n in (5, 8)))
    code, printed = run_command("report", *runs, "--out", tmp_path / "out")
    assert code == 0 and "not compared" not in printed, printed
    assert "CW (2 seeds)" in (tmp_path / "out" / "report.html").read_text()


def test_runs_without_a_configuration_are_not_compared_and_that_is_said(tmp_path):
    runs = [f"CW={write_metrics(tmp_path / str(number), METRICS)}" for number in (1, 2)]
    for command in ("report", "plot"):
        code, printed = run_command(command, *runs, "--out", tmp_path / "out" / "x")
        assert code == 0 and "CW: no .hydra/config.yaml or training_args.json in " in printed
        assert f"{tmp_path / '1'}, {tmp_path / '2'}, so these runs were not compared" in printed


def test_evaluations_of_one_name_must_be_asked_alike(tmp_path):
    def report(**second) -> str:
        settings = {"checkpoint": "/a", "weights": "1", "seed": 42, "temperature": 0.6}
        write_evaluation(tmp_path / "a", 10, {"amc23": grades(1, 2)}, **settings)
        write_evaluation(tmp_path / "b", 10, {"amc23": grades(2, 2)}, **(settings | second))
        _, printed = run_command("report", f"CW={tmp_path / 'a'}", f"CW={tmp_path / 'b'}", "--out", tmp_path / "out")
        shutil.rmtree(tmp_path / "a")
        shutil.rmtree(tmp_path / "b")
        return printed

    assert "75.0 (3/4)" in report(checkpoint="/b", weights="2")
    assert "temperature is 0.6 in the first and 1.0 in the second" in report(weights="2", temperature=1.0)
    assert "/a was evaluated twice with seed 42 as CW" in report()


def test_models_that_were_asked_differently_are_said_to_be(tmp_path):
    """The page compares them, and says what differs; two that share no question it refuses."""
    for name, temperature, sha, answer in (("base", 0.6, "a", 7), ("CW", 0.0, "b", 7), ("other", 0.6, "a", 8)):
        settings = {"temperature": temperature, "top_p": 0.95, "seed": len(name), "checkpoint": name}
        write_evaluation(tmp_path / name, None if name == "base" else 10, {"amc23": grades(1, 2)}, **settings)
        file = tmp_path / name / "settings.json"
        given = json.loads(file.read_text())
        given["benchmarks"]["amc23"]["prompt_sha"] = sha
        given |= {"template": {}} if name == "CW" else {}  # as good as none
        given |= {"parameters": {"min_p": 0.1} if name == "CW" else None}
        file.write_text(json.dumps(given))
        rows = [json.dumps({"index": i, "ground_truth": answer, "acc": i}) for i in (0, 1)]
        (tmp_path / name / "amc23.jsonl").write_text("\n".join(rows) + "\n")
    base, ours, other = (f"{name}={tmp_path / name}" for name in ("base", "CW", "other"))
    _, printed = run_command("report", base, ours, "--out", tmp_path / "out")
    assert (
        "The models were not asked alike: parameters (None and {'min_p': 0.1}), temperature (0.6 and 0.0), " in printed
    )
    assert "the prompt of amc23 differ." in printed
    _, printed = run_command("report", base, other, "--out", tmp_path / "out")
    assert "base and other have no question of amc23 in common; evaluate one of them again" in printed
    (tmp_path / "base" / "amc23.jsonl").write_text("\n".join(rows).replace("ground_truth", "gold") + "\n")
    _, printed = run_command("report", base, other, "--out", tmp_path / "out")
    assert "in common" not in printed  # these are the questions of the other, as version 0.1 wrote them


def test_an_interrupted_evaluation_is_said_to_favour_short_answers(tmp_path):
    write_evaluation(tmp_path / "a", None, {"amc23": grades(1, 2)}, interruptions=2)
    _, printed = run_command("report", f"base={tmp_path / 'a'}", "--out", tmp_path / "out")
    assert "base: the evaluation was interrupted 2 times" in printed and "pass@1 may be too high" in printed


def test_steps_that_only_some_seeds_have_do_not_vanish_without_a_word(tmp_path):
    """Validated at the start and at the end, after 5 and after 8 steps."""
    metric = "val-core/x/acc/mean@1"
    runs = []
    for seed, last in ((1, 5), (2, 8)):
        steps = {step: {"actor/entropy": 1.0} for step in range(1, last + 1)} | {0: {metric: 0.25 * seed}}
        steps[last][metric] = 1.0
        runs.append(read_run(f"CW={write_metrics(tmp_path / str(seed), steps)}"))
    (figure,) = plots.named(runs, "accuracy")
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == [0] and line.get_ydata().tolist() == [0.375]
    legend = figure.axes[0].get_legend()
    assert legend.get_texts()[0].get_text() == "CW (2 seeds; left out: 2 steps that only some have)"
    assert legend.get_title().get_text() == "band: 95% interval"
    (figure,) = plots.named(runs, "entropy")
    assert (
        figure.axes[0].get_legend().get_texts()[0].get_text() == "CW (2 seeds; left out: 3 steps that only some have)"
    )
    (figure,) = plots.named(runs[:1], "entropy")
    assert figure.axes[0].get_legend().get_title().get_text() == ""


def config(method: str = "cw_grpo", seed: int | None = None, **options) -> dict:
    """What of verl's configuration tells methods apart, and seeds."""
    algorithm = {"adv_estimator": "cw_grpo" if method == "none" else method}
    algorithm |= {"cw_grpo": options | ({"kernel": "none"} if method == "none" else {})}
    model = {"model": {"path": "/home/someone/models/tiny"}}
    return {"algorithm": algorithm, "data": {"seed": seed}, "actor_rollout_ref": model}


def trained(name: str, config: dict, rise: float = 0.0, norm: float = 1.0, accuracy: float = 0.5, noise=(), **logged):
    """A run of 200 steps whose reward rises in a straight line, by ``rise`` in 100 steps."""
    steps = range(1, 201)
    metrics = {f"cw_grpo/{key}": {step: value for step in steps} for key, value in logged.items()}
    metrics["critic/score/mean"] = {
        step: 1 + rise * step / 100 + (noise[step - 1] if len(noise) else 0) for step in steps
    }
    metrics["actor/entropy"] = {step: 1 - step / 400 for step in steps}
    metrics["actor/grad_norm"] = {step: norm if step <= 100 else 50.0 for step in steps}
    metrics["val-core/x/acc/mean@1"] = {0: 0.25, 200: accuracy}
    return Run(name, Path(name), metrics, config)


def texts(runs: list[Run], *evaluations: Evaluation) -> dict[str, str]:
    return {point.word: point.text for point in verdict(runs, evaluations).points}


def test_the_verdict_tests_methods_over_seeds():
    values = {"rise": ((0.40, 0.45, 0.50), (0.10, 0.12, 0.17)), "norm": ((2.0, 2.2, 2.1), (0.5, 0.5, 0.6))}
    values["accuracy"] = ((0.60, 0.62, 0.64), (0.50, 0.53, 0.53))
    runs = []
    for place, (name, method) in enumerate((("GRPO", "none"), ("CW", "cw_grpo"))):
        for i, seed in enumerate((1, 2, 3)):
            runs.append(trained(name, config(method, seed), **{key: value[place][i] for key, value in values.items()}))

    def expected(theirs, ours, transform=lambda x: x, shown="{:+.3f}".format):
        test = stats.ttest_rel(transform(np.array(ours)), transform(np.array(theirs)))
        low, high = test.confidence_interval()
        return f"{shown((low + high) / 2)} [{shown(low)}, {shown(high)}]"

    said = texts(runs)
    accuracy = (
        f"{expected(*values['accuracy'], lambda x: 100 * x, '{:+.1f}'.format)} points against GRPO (paired by seed)"
    )
    assert said["In short"] == f"Accuracy is lower with CW: {accuracy}."
    assert said["Accuracy"] == f"On validation, step 200: GRPO 62.0%; CW 52.0%, {accuracy}: lower."
    slopes = expected(*values["rise"])
    assert said["Reward's rise"].endswith(f"GRPO +0.450; CW +0.130, {slopes} against GRPO (paired by seed): lower.")
    late = expected(*([1 + rise * 1.755 for rise in rises] for rises in values["rise"]))  # of steps 151 to 200
    assert said["Reward"].endswith(f"CW 1.228, {late} against GRPO (paired by seed): lower.")
    ratio = expected(*values["norm"], np.log, lambda x: f"{np.exp(x):#.3g}")
    small = [trained("x", config(seed=1), norm=norm) for norm in (0.0612, 123.4)]
    assert [texts([run])["Gradient norm"].split()[-1] for run in small] == ["0.0612.", "123."]
    assert said["Gradient norm"].endswith(f"{ratio} times that of GRPO (paired by seed): lower.")
    assert said["Entropy"].endswith("CW 0.561, +0.000 against GRPO (no interval).")  # it is the same under all seeds
    late = stats.ttest_1samp([1 + rise * 1.755 for rise in values["rise"][1]], 0).confidence_interval()
    alone = texts(runs[3:])
    assert alone["Reward"].endswith(f"CW 1.228 [{late.low:.3f}, {late.high:.3f}] (by seed).")
    assert (
        "GRPO (3 runs, seeds 1, 2, 3, 200 steps); CW (3 runs, seeds 1, 2, 3, 200 steps); model …/models/tiny."
        in (said["Compared"])
    )
    other_seeds = [
        Run(run.name, run.path, run.metrics, config("cw_grpo", 9)) if run.name == "CW" else run for run in runs
    ]
    assert "(by seed, Welch's t): lower" in texts(other_seeds)["Accuracy"]


def test_one_pair_of_runs_has_no_verdict_on_methods():
    rng = np.random.default_rng(0)
    runs = [trained("GRPO", config("none", 7), rise=0.5, noise=rng.normal(0, 0.01, 200))]
    runs += [trained("CW", config("cw_grpo", 7), rise=0.1, noise=rng.normal(0, 0.01, 200))]
    said = texts(runs)
    assert said["In short"] == (
        "Accuracy: CW +0.0 points against GRPO (no interval). One run does not tell methods apart: another seed may "
        "turn this around. To tell the methods apart, train GRPO and CW with two more seeds at least, the same for all "
        "(data.seed; SEED=2 in front of this repository's scripts)."
    )
    low, high = map(float, re.search(r"\[(.*), (.*)\] against GRPO \(by step\): lower", said["Reward's rise"]).groups())
    assert low < -0.4 < high and high - low < 0.05
    # With the answers of both checkpoints: the test by question, of these checkpoints.
    answers = [Evaluation(name, 200, {"validation": {str(i): [float(i < right)] for i in range(50)}}) for name, right in
               (("GRPO", 30), ("CW", 20))]  # fmt: skip
    low, high = stats.ttest_rel([0.0] * 20 + [-1.0] * 10 + [0.0] * 20, [0.0] * 50).confidence_interval()
    told = f"-20.0 [{100 * low:+.1f}, {100 * high:+.1f}] points against GRPO (by question)"
    said = texts(runs, *answers)
    assert said["Accuracy"] == f"On validation, step 200: GRPO 60.0%; CW 40.0%, {told}: lower."
    assert said["In short"].startswith(
        f"In these runs, accuracy is lower with CW: {told}. One run does not tell methods apart"
    )


def test_a_run_alone_says_which_run_would_tell():
    said = texts([trained("CW", config("cw_grpo", 7), rise=0.1)])
    command = "the same command with +algorithm.cw_grpo.kernel=none (in TRL --cw_kernel none) and another folder"
    assert said["In short"].endswith(f"Train GRPO with the same seed 7: {command}.")
    assert said["Accuracy"].endswith("CW 50.0%, +25.0 points against before training (no interval).")
    assert said["Reward's rise"].endswith("CW +0.100.")  # its steps do not scatter
    said = texts([trained("GRPO", config("none", seed)) for seed in (1, 2)])
    assert (
        "Train CW-GRPO with the same seeds 1, 2: the same command with algorithm.adv_estimator=cw_grpo"
        in said["In short"]
    )
    said = texts([trained(name, config("cw_grpo", 1)) for name in ("a", "b")])
    assert "Train GRPO with the same seed 1" in said["In short"]
    assert "None is known to be plain GRPO; a is the reference." in said["Compared"]
    assert texts([Run("x", Path("x"), {"actor/lr": {1: 0.1}})]).keys() == {"In short", "Compared"}
    nan = {metric: {1: math.nan, 2: math.inf} for metric in ("critic/score/mean", "actor/entropy", "actor/grad_norm")}
    assert texts([Run("x", Path("x"), nan)]).keys() == {"In short", "Compared"}  # and no warning
    once = texts([Run("x", Path("x"), {"actor/entropy": {1: 0.5}})])
    assert "1 step)" in once["Compared"] and once["Entropy"] == "Mean of step 1: x 0.500."
    assert "nothing to compare" in texts([], Evaluation("base", None, {"amc23": {"0": [1.0]}}))["In short"]


def test_what_is_plain_grpo():
    def run(name: str, config: dict, **logged: float) -> Run:
        return Run(name, Path(name), {f"cw_grpo/{key}": {1: value} for key, value in logged.items()}, config)

    clip_cov = config("grpo")
    clip_cov["actor_rollout_ref"]["actor"] = {"policy_loss": {"loss_mode": "clip_cov"}}
    assert is_grpo(run("x", config("grpo"))) and is_grpo(run("x", config("none")))
    assert not is_grpo(run("GRPO", config("cw_grpo"))) and not is_grpo(run("GRPO", clip_cov))
    kept = {"effective_sample_share": 1.0, "extreme_gradient_share": 0.8}
    equal = {"effective_sample_share": 1.0, "extreme_gradient_share": 0.0}  # all rewards are equal: says nothing
    assert is_grpo(run("x", {}, **kept)) and is_grpo(run("GRPO", {}, **equal)) and is_grpo(run("GRPO", {}))
    assert not is_grpo(run("CW", {}, **equal))
    assert not is_grpo(run("GRPO", {}, effective_sample_share=0.9)) and not is_grpo(run("x", {}))


def test_the_verdict_says_what_the_weights_remove():
    logged = {"extreme_gradient_share": 0.856, "extreme_balance": 0.57}
    runs = [trained("GRPO", config("none", 1), **logged, downweighted_share=0.0)]
    runs += [trained("CW", config("cw_grpo", 1), **logged, downweighted_share=0.054)]
    balance = runs[1].metrics["cw_grpo/extreme_balance"]
    balance.update(dict.fromkeys(range(1, 151), 0.0))  # steps without extreme tokens do not count
    balance.update({151: math.nan, 152: -1.0})  # one far from the others does little
    said = texts(runs)["Weights"]
    assert "under GRPO they hold 86% of the squared gradient with their full weight" in said
    assert "under CW they are 5.4% of the tokens and hold 86% of the squared gradient before the weights act" in said
    assert "is 0.57 under GRPO, 0.57 under CW: near 0, they occur about as often in good as in bad" in said
    balance.update(dict.fromkeys(range(1, 192), 0.0))  # 9 steps are left
    assert "is 0.57 under GRPO: near 0" in texts(runs)["Weights"]
    assert "balance" not in texts(runs[1:])["Weights"]


def test_the_verdict_says_whether_entropy_left_its_band():
    def course(*bounds: dict) -> str:
        return texts([trained("CW", config("cw_grpo", seed, **given)) for seed, given in enumerate(bounds)])[
            "Course of entropy"
        ]  # from 0.9975 to 0.5

    assert course({}).endswith("CW goes from 0.974 to 0.524 nats.")  # means of 20 and 20 steps
    assert course({"entropy_low": "${oc.env:LOW}"}) == course({})  # not resolved
    assert "is outside its band (0.6 to inf) in 40 of 200 steps, first in step 161." in course({"entropy_low": 0.6})
    assert "is outside its band (-inf to 0.9) in 39 of 200 steps, first in step 1." in course({"entropy_high": 0.9})
    assert "is outside its band (0.4 to 1.2) in 0 of 200 steps." in course({"entropy_low": 0.4, "entropy_high": 1.2})
    assert "(0.6 to inf or 0.55 to inf) in 60 of 400" in course({"entropy_low": 0.6}, {"entropy_low": 0.55})


def test_a_metric_that_only_one_method_has_is_not_compared():
    rng = np.random.default_rng(0)
    runs = [trained(name, config(name, 1), noise=rng.normal(size=200)) for name in ("none", "cw_grpo")]
    runs[0].metrics["critic/score/mean"] = {1: math.nan}
    del runs[0].metrics["actor/entropy"]
    said = texts(runs)
    assert "cw_grpo 0.561 [" in said["Entropy"] and "none" not in said["Entropy"] + said["Reward"]


def test_a_verdict_on_one_evaluated_method():
    def answered(name: str, step: int | None) -> Evaluation:
        return Evaluation(name, step, {"amc23": {str(i): [float(i < 10)] for i in range(40)}})

    runs = [trained("grpo", config("none", 1)), trained("cw", config("cw_grpo", 1))]
    assert texts(runs, answered("cw", 200))["Accuracy"] == "On AMC23, step 200: cw 25.0%."
    said = texts([], answered("base", None), answered("cw", 200))
    assert "Train GRPO with the same seed: the same command with +algorithm.cw_grpo.kernel=none" in said["In short"]


def test_settings_that_make_no_method_are_named():
    def run(name: str, lr: float, seed: int, **options) -> Run:
        given = config(name, seed, record_every=seed)
        given["actor_rollout_ref"]["actor"] = {"optim": {"lr": lr}, "policy_loss": {"loss_mode": name}}
        given["data"] |= options
        return trained(name, given)

    same = [run("grpo", 1e-6, 1), run("cw_grpo", 1e-6, 2, only_here=1)]
    assert "also differ" not in texts(same)["In short"]
    other = [same[0], run("cw_grpo", 1e-4, 2)]
    text = "The methods also differ in actor_rollout_ref.actor.optim.lr (1e-06 and 0.0001), so differences are not"
    assert texts(other)["In short"].startswith(text)
    more = [run("grpo", 1e-6, 1, a=1, b=1, c=1), run("cw_grpo", 1e-4, 2, a=2, b=2, c=2)]
    assert "optim.lr (1e-06 and 0.0001), data.a (1 and 2), 2 more settings, so" in texts(more)["In short"]


def write_run(folder: Path, *overrides: str, right: dict[int, int], dumps: bool = True) -> Path:
    """A run that was validated on 40 questions, with this many right answers at each step."""
    write_config(folder, *overrides)
    steps: dict[int, dict[str, float]] = {step: {"actor/entropy": 1.0, "actor/grad_norm": 1.0} for step in range(1, 3)}
    for step, count in right.items():
        steps.setdefault(step, {})["val-core/x/acc/mean@1"] = count / 40
        rows = [{"input": f"q{i}", "gts": "1", "acc": float(i < count)} for i in range(40)]
        if dumps:
            (folder / "validation").mkdir(exist_ok=True)
            (folder / "validation" / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_metrics(folder, steps)


PLAIN = ["algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.kernel=none"]


def test_runs_of_one_model_start_at_one_point(tmp_path):
    """39.6% under one method and 45.8% under the other, before training: one curve seems to rise, the other to fall."""
    model = "actor_rollout_ref.model.path=/a/rather/long/path/to/model"
    write_run(tmp_path / "grpo", *PLAIN, model, right={0: 16, 2: 24})
    write_run(tmp_path / "cw", "algorithm.adv_estimator=cw_grpo", model, right={0: 20, 2: 18})
    arguments = [f"GRPO={tmp_path / 'grpo'}", f"CW={tmp_path / 'cw'}"]
    _, printed = run_command("report", *arguments, "--out", tmp_path / "out")
    assert "| all runs, before training | 0 | - | 45.0 (36/80) |" in printed
    assert "their differences at step 0 are noise" in printed and "their differences at step 0 are noise" in (
        tmp_path / "out" / "report.html").read_text()  # fmt: skip
    material = collect(arguments)
    intervals = plots.accuracies(
        material.runs,
        "val-core/x/acc/mean@1",
        [replace(each, name="") if each.step == 0 else each for each in material.validations],
        material.common_start,
    )
    means = {str(i): [float(i < 16), float(i < 20)] for i in range(40)}  # a question was asked in both runs
    assert intervals["GRPO", 0] == intervals["CW", 0] == pytest.approx((0.45, score(means).low, score(means).high))
    low, high = stats.binomtest(24, 40).proportion_ci(method="wilson")
    assert intervals["GRPO", 2] == pytest.approx((0.6, low, high))
    write_run(tmp_path / "other", "actor_rollout_ref.model.path=/b", right={0: 20, 2: 18})
    _, printed = run_command("report", arguments[0], f"CW={tmp_path / 'other'}", "--out", tmp_path / "out")
    assert "all runs, before training" not in printed and "| CW | 0 | - | 50.0 (20/40) |" in printed


def test_an_accuracy_has_the_interval_that_its_runs_can_give(tmp_path):
    runs = [read_run(f"CW={write_run(tmp_path / str(n), right={2: n}, dumps=False)}") for n in (10, 16, 19)]
    intervals = plots.accuracies(runs, "val-core/x/acc/mean@1")
    assert intervals["CW", 2] == pytest.approx(
        (0.375, *stats.t.interval(0.95, 2, 0.375, stats.sem([0.25, 0.4, 0.475])))
    )
    mean, low, high = plots.accuracies(runs[:1], "val-core/x/acc/mean@1")["CW", 2]
    assert mean == 0.25 and math.isnan(low) and math.isnan(high)
    # The answers of another validation set are in the same file: they give no interval for this one.
    other = Evaluation("CW", 2, {"validation": {str(i): [float(i < 30)] for i in range(40)}})
    assert math.isnan(plots.accuracies(runs[:1], "val-core/x/acc/mean@1", [other])["CW", 2][1])
    write_run(tmp_path / "bare", right={0: 10, 2: 16}, dumps=False)
    run_command("report", f"CW={tmp_path / 'bare'}", "--out", tmp_path / "out")
    assert "No interval for CW: one run, whose answers were not kept." in (tmp_path / "out" / "report.html").read_text()


def test_methods_keep_their_order_and_colours(tmp_path):
    for name, overrides in (("z", PLAIN), ("a", ["algorithm.adv_estimator=cw_grpo"])):
        write_run(tmp_path / name, *overrides, right={2: 10})
    (tmp_path / "m").mkdir()
    write_metrics(tmp_path / "m", {1: {"response_length/mean": 3.0}, 2: {"response_length/mean": 3.0}})
    _, printed = run_command("report", *(tmp_path / name for name in "zma"), "--out", tmp_path / "out")
    assert printed.index("| z | 2 |") < printed.index("| a | 2 |") and "|  | z | a | paper (reported) |" in printed
    runs = [read_run(tmp_path / name) for name in "zma"]
    (entropy,), (length,) = (plots.named(runs, name) for name in ("entropy", "length"))
    z, a = entropy.axes[0].lines
    assert [line.get_label() for line in (z, a)] == ["z", "a"]
    assert len({line.get_color() for line in (z, a, *length.axes[0].lines)}) == 3  # also of who did not log the other
    entropy.canvas.draw()
    assert all(float(tick).is_integer() for tick in entropy.axes[0].get_xticks())  # no step 1.5


def test_hyperparameters_are_shown_as_they_were(tmp_path):
    path = "actor_rollout_ref.model.path=/home/someone/a/rather/long/path/to/tiny-model"
    write_run(tmp_path / "grpo", *PLAIN, path, right={2: 10})
    write_run(tmp_path / "cw", "algorithm.adv_estimator=cw_grpo", path, right={2: 10})
    loss = "actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo"
    write_run(tmp_path / "loss", "algorithm.adv_estimator=rloo", loss, right={2: 10})
    write_record(tmp_path / "cw", 1, 100)
    arguments = [tmp_path / name for name in ("grpo", "cw", "loss")]
    _, printed = run_command("report", *arguments, "--out", tmp_path / "out")
    assert "| model | …/to/tiny-model | …/to/tiny-model |" in printed and "/home/someone" not in printed
    assert "| advantage estimator | grpo (cw_grpo with kernel=none) | cw_grpo | rloo |" in printed
    assert "| cw_grpo: scope | group | group | micro-batch |" in printed
    assert "| cw_grpo: kernel | none | gaussian | gaussian |" in printed
    assert "| most extreme | positive ≥ | positive mean | negative ≥ | negative mean |\n" in printed  # and no paper's
    _, printed = run_command("report", *arguments, "--out", tmp_path / "out", "--paper", "all")
    assert "negative mean | positive (reported) | negative (reported) |" in printed


def test_several_seeds_of_evaluations_are_tested_over_seeds(tmp_path):
    right = {"GRPO": (20, 24, 22), "CW": (30, 31, 35)}
    arguments = []
    for name, of_seeds in right.items():
        for seed, count in enumerate(of_seeds):
            run = write_config(tmp_path / f"{name}{seed}", f"data.seed={seed}")
            write_metrics(run, METRICS)
            arguments.append(f"{name}={run}")
            asked = {"checkpoint": str(run / "global_step_2"), "weights": f"{name}{seed}"}
            write_evaluation(tmp_path / f"eval-{name}{seed}", 2, {"amc23": grades(count, 40)}, **asked)
            arguments.append(f"{name}={tmp_path / f'eval-{name}{seed}'}")
    _, printed = run_command("report", *arguments, "--out", tmp_path / "out")
    p = stats.ttest_rel(*(np.array(right[name]) / 40 for name in ("CW", "GRPO"))).pvalue
    assert f"| CW - GRPO | +25.0 (p {p:.2g}) | +25.0 (p {p:.2g}) | paired by seed |" in printed
    _, printed = run_command(
        "report", *arguments[1::2], "--out", tmp_path / "out"
    )  # without the runs, so without seeds
    p = stats.ttest_ind(*(np.array(right[name]) / 40 for name in ("CW", "GRPO")), equal_var=False).pvalue
    assert f"| CW - GRPO | +25.0 (p {p:.2g}) | +25.0 (p {p:.2g}) | by seed, Welch's t |" in printed
    _, printed = run_command("report", arguments[1], arguments[7], "--out", tmp_path / "out")
    p = stats.binomtest(10, 10).pvalue
    assert f"| CW - GRPO | +25.0 (p {p:.2g}) | +25.0 (p {p:.2g}) | by question |" in printed
