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
from cw_plugin.reports.runs import read_run
from cw_plugin.reports.statistics import average, paired_difference, score

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
    assert "has records of the steps 1, 50, none of them in --steps" in printed


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
    assert code == 0 and after == before and "part" not in after


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
    assert legend.get_title().get_text() == "band: ± 1 standard deviation over seeds"
    (figure,) = plots.named(runs, "entropy")
    assert (
        figure.axes[0].get_legend().get_texts()[0].get_text() == "CW (2 seeds; left out: 3 steps that only some have)"
    )
    (figure,) = plots.named(runs[:1], "entropy")
    assert figure.axes[0].get_legend().get_title().get_text() == ""
