"""The report's page, tables and figures; broken folders end in one clear sentence."""

import html
import itertools
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import ENTROPY, NORM, REWARD, a_run, report, report_of, rows_of, write, write_answers
from token_records import files_in, write_record

from cw_plugin.lab.reports import figures
from cw_plugin.lab.reports.covariance import table_1
from cw_plugin.lab.reports.report import MORE_CURVES, OVERVIEW, _curves


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, str]:
    """The report of two methods, with two seeds each, token records, and an evaluation."""
    folder, runs = tmp_path_factory.mktemp("report"), []
    for seed, weights in itertools.product((1, 2), ("none", None)):
        place, lr = folder / f"{weights}-{seed}", 3 if weights else 1
        runs.append(a_run(place, weights, seed, accuracy=0.5 + seed / 100, lr=lr))
        files = files_in(runs[-1], weights=weights or "gaussian")
        write_record(files, 1, np.random.default_rng(seed), {0: [40, 50], 1: [30, 20]})
        asked = {"aime24": (9 + seed, 30), "amc23": (10 * seed, 40)}
        write_answers(folder / "evaluation" / f"{weights}-{seed}", 200, runs[-1] / "global_step_200", **asked)
    write_answers(folder / "evaluation" / "base", None, aime24=(3, 30), amc23=(20, 40))
    out, printed = report_of(*runs, folder / "evaluation")
    assert "matplotlib" not in printed and "Warning" not in printed, printed
    return out, printed


def test_the_tables_of_scores_and_settings(written):
    out, printed = written
    rows = rows_of(out / "table2.csv")
    assert rows[0] == ["method", "step", "entropy", "AIME24", "AMC23", "average", "less base"]
    three, twenty = "10.0 (3 of 30) [3.5, 25.6]", "50.0 (20 of 40) [35.2, 64.8]"  # Wilson (1927)
    assert rows[1] == ["base", "", "", three, twenty, "30.0", ""]
    # Two seeds: 10 and 11 of 30, 10 and 20 of 40; the average is that of the benchmarks.
    assert rows[2][:3] == ["GRPO", "200", "0.1"] and rows[2][3].startswith("35.0 (21 of 60)")
    assert rows[2][4].startswith("37.5 (30 of 80)") and rows[2][5] == "36.2" and rows[2][6].startswith("+6.2 [")
    what, of_grpo, _, difference, seeds = rows_of(out / "comparison.csv")[1]
    assert (what, of_grpo, seeds) == ("Accuracy, AIME24, AMC23, step 200", "36.2%", "2")
    assert difference == "+0.0 points"  # under each of the seeds, so without an interval
    (asked,) = [sorted(row[1:]) for row in rows_of(out / "table4.csv") if row[0].endswith("rollout.temperature")]
    assert asked == ["0.6", "0.6", "1.0"]
    assert {row[0]: row[1:] for row in rows_of(out / "table5.csv")[1:]} == {
        "data.seed": ["1, 2", "1, 2"], "trainer.lr": ["3", "1"], "algorithm.cw_grpo.weights": ["none", "-"]
    }  # fmt: skip
    assert "The runs differ in algorithm.cw_grpo.weights, trainer.lr (Table 5)." in printed
    logged = pd.read_csv(out / "metrics.csv")
    rewards = logged[logged.metric == REWARD].pivot(index="step", columns=["method", "seed"], values="value")
    assert set(rewards) == {("GRPO", 1), ("GRPO", 2), ("CW-GRPO", 1), ("CW-GRPO", 2)}
    assert list(rewards.index) == list(range(1, 201)) and (rewards.T == [9.0] * 150 + [1.0] * 50).all(axis=None)


def test_table_1_has_thresholds_and_means_of_extreme_tokens():
    tokens = pd.DataFrame({"covariance": [-4.0, -1.0, 1.0, 2.0, 8.0], "count": [10, 90, 80, 19, 1]})
    one_by_one = table_1("x", tokens.loc[tokens.index.repeat(tokens["count"]), ["covariance"]])
    assert one_by_one.frame.to_numpy().tolist()[2] == ["20.00%", 2, 2.3, -1, -2.5]
    assert "100 tokens are positive, 100 negative" in one_by_one.notes[0]
    assert one_by_one.notes[1].endswith("mostly chance: 0.01%, 1.00%.")  # of fewer than ten tokens
    assert table_1("x", tokens[tokens.covariance != -1]).notes[1].endswith("1.00%, 20.00%, 40.00%.")  # of a side
    rows = {row[0]: row[1:] for row in table_1("x", tokens).frame.to_numpy().tolist()}
    assert all(math.isnan(value) for value in rows["0.01%"])  # less than a token
    assert rows["1.00%"] == [8, 8, -4, -4]  # one token of 100
    assert rows["20.00%"] == [2, 2.3, -3.67, -2.5]  # 8 + 19 x 2 over 20; between the edges at 10 and 100


def test_every_figure_is_written_twice_and_the_page_stands_alone(written):
    out, printed = written
    page = (out / "report.html").read_text()
    assert not re.search(r"<script|@import|(src|href)=\"(https?:|//)", page)
    assert page.index("CW-GRPO: 2 runs. A band") < page.index("<figure") < page.index("CW-GRPO less GRPO")
    assert "Tokens of CW-GRPO" in (out / "tokens-2.html").read_text()
    counts = re.findall(r"(\d+) tokens are positive, (\d+) negative", page)
    assert [int(positive) + int(negative) for positive, negative in counts] == [280, 280]  # of both seeds
    for name in ("reward", "accuracy", "entropy", "grad-norm", "contributions"):
        assert "CW-GRPO" in "".join(ElementTree.parse(out / f"{name}.svg").getroot().itertext())
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert all((out / link).is_file() for link in re.findall(r'href="([^"#]+)"', page))
    assert f"{out / 'report.html'}" in printed and "CW-GRPO less GRPO" in printed.splitlines()[2]


def test_curves_show_mean_and_band_of_seeds_at_whole_steps(tmp_path):
    seeds = [pd.Series([1.0, 2.0, 3.0, 9.0], [1, 2, 3, 4]), pd.Series([3.0, 4.0, 5.0], [1, 2, 3])]
    figure = figures.curves({"_GRPO $x$": seeds, "none": [pd.Series(dtype=float)]}, "Entropy")
    (line,), (band,) = figure.axes[0].lines, figure.axes[0].collections
    assert line.get_xdata().tolist() == [1, 2, 3] and line.get_ydata().tolist() == [2.0, 3.0, 4.0]
    assert min(band.get_paths()[0].vertices[:, 1]) == pytest.approx(2 - math.sqrt(2))
    figure.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())
    assert figure.legends[0].get_window_extent().y1 <= figure.axes[0].get_window_extent().y0  # below the axes
    smooth = figures.curves({"a": seeds[:1]}, "x", window=2).axes[0].lines[0].get_ydata()
    assert smooth.tolist() == [1.0, 1.5, 2.5, 6.0]
    for name in ("one", "two"):
        figures.save(figures.curves({"_GRPO $x$": seeds}, "x"), tmp_path / name)
    for kind in ("svg", "pdf"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    assert "_GRPO $x$" in "".join(ElementTree.parse(tmp_path / "one.svg").getroot().itertext())


def test_figure_3_has_the_share_that_the_most_extreme_tokens_of_a_side_hold():
    tokens = pd.DataFrame({"covariance": [1.0, -4.0, 3.0, -1.0, -3.0]})
    lines = [axes.lines[0] for axes in figures.contributions({"x": tokens}, ["y", "x"]).axes]
    assert {line.get_color() for line in lines} == {figures.style(1)["color"]}  # which "x" has in the other figures
    left, right = (line.get_xydata() for line in lines)
    assert left == pytest.approx(np.array([[1 / 2, 3 / 4], [1, 1]]))
    assert right == pytest.approx(np.array([[1 / 3, 4 / 8], [2 / 3, 7 / 8], [1, 1]]))


def test_a_validation_is_drawn_as_it_is_and_what_else_was_logged_as_averages_over_a_twentieth():
    rows = [("x", 0, math.nan, step, of, float(step)) for of in ("val-core/accuracy", REWARD) for step in range(1, 41)]
    frame = pd.DataFrame(rows, columns=["method", "run", "seed", "step", "metric", "value"])
    drawn = _curves(frame, ["x"], OVERVIEW).items()  # also of a run without a seed
    last = {name: figure.axes[0].lines[0].get_ydata()[-1] for name, figure in drawn}
    assert last == {"accuracy": 40.0, "reward": 39.5}


def test_each_figure_has_its_metric_and_shares_are_in_per_cent():
    names = ("extreme_gradient_share", "extreme_balance", "downweighted_share", "covariance_before", "covariance_after")
    metrics = [REWARD, "val-core/accuracy", "val-core/reward", ENTROPY, NORM, *(f"cw_grpo/{name}" for name in names)]
    rows = [("x", 0, math.nan, 1, of, float(value)) for value, of in enumerate([*metrics, "response_length/mean"])]
    frame = pd.DataFrame(rows, columns=["method", "run", "seed", "step", "metric", "value"])
    drawn = _curves(frame, ["x"], [*OVERVIEW, *MORE_CURVES])
    assert {name: figure.axes[0].lines[0].get_ydata()[0] for name, figure in drawn.items()} == {
        "reward": 0, "accuracy": 1, "validation-reward": 2, "entropy": 3, "grad-norm": 4, "gradient-share": 5,
        "balance": 6, "downweighted": 7, "covariance": 8, "covariance-after": 9, "length": 10,
    }  # fmt: skip
    for figure in drawn.values():
        figure.draw_without_rendering()
    ticks = {name: figure.axes[0].get_yticklabels()[0].get_text() for name, figure in drawn.items()}
    assert {name for name, tick in ticks.items() if "%" in tick} == {"accuracy", "gradient-share", "downweighted"}


def test_names_are_shown_as_they_are_and_do_nothing(tmp_path):
    names = ["+cmd", "-2+3|x", "@SUM(1)", "<script>alert(1)</script>", "[a](http://b)", "$x$ & _y_ \"'", "a|b"]
    runs = [f"{name}={a_run(tmp_path / str(number), steps=2)}" for number, name in enumerate(names)]
    assert report("--out", tmp_path / "out", "--", *runs)[0] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page and "A band" not in page  # of a single seed
    assert [html.unescape(name) for name in re.findall(r"<th>(.*?)</th>", page)][1:8] == names
    assert rows_of(tmp_path / "out" / "comparison.csv")[0][1:8] == names


def small(path: Path) -> None:
    a_run(path, steps=2)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lambda path: None, "{run}", "does not exist"),
        (lambda path: path.mkdir(), "{run}", "holds no metrics"),
        (lambda path: write(path / "m.jsonl", '{"step": null, "data": {"x": 1}}\n'), "{run}", "holds no metrics"),
        (lambda path: write(path / "m.jsonl", '{"step": 1, "data": {}}\n{\n{}\n'), "{run}", "line 2 is not JSON"),
        (lambda path: write(path / "m.jsonl", '{"step": 1, "data": {}}\n{"step": null, "data": {"x": 1}}\n'), "{run}",
         "line 2 has no step, a number, with data"),
        (lambda path: write(path / "m.jsonl", '{"step": 1.5, "data": {"x": 1}}\n'), "{run}",
         "m.jsonl has the step 1.5, which is no whole number"),
        (lambda path: write(path / "m.csv", "step,x\n1,1\ntwo,2\n"), "{run}/m.csv", "m.csv has the step 'two'"),
        (lambda path: write(path / "m.csv", "step,x\n"), "{run}/m.csv", "holds no metrics"),
        (lambda path: write(path / "trainer_state.json", '{"log_history": [{"step": null}]}'), "{run}",
         "trainer_state.json has the step None"),
        (lambda path: write(path / "trainer_state.json", '{"log_history": 3}'), "{run}", "trainer_state.json is not"),
        (lambda path: write(path / ".hydra/config.yaml", "- 1\n- 2\n"), "{run}", "config.yaml is a list"),
        (lambda path: write(path / ".hydra/config.yaml", "a: [1\n"), "{run}", "config.yaml cannot be read"),
        (lambda path: [small(path / name) for name in "ab"], "{run}",
         "holds 2 runs (such as a/metrics, b/metrics); give the folder of each as NAME=FOLDER, or its log"),
        (lambda path: write(path / "b/x.yaml", "evaluation: {step: 1}"), "{run}", "compared. b is not finished on x"),
        (small, "{run} {run}", "is given twice"),
        (small, "=x", "has no name before"),
        (small, "x=", "has no folder after the ="),
        (small, "x" * 300, "xxx does not exist"),
        (small, "x=" + "y" * 300, "yyy does not exist"),
        (small, "{run} --out /proc/x", "/proc/x cannot be written"),
    ],
)  # fmt: skip
def test_bad_input_ends_in_one_sentence(make, arguments, message, tmp_path):
    make(tmp_path / "run")
    code, printed = report("--out", tmp_path / "out", *arguments.format(run=tmp_path / "run").split())
    assert code == 2 and message in printed and "Traceback" not in printed
    assert printed.count("Error:") == 1 and not (tmp_path / "out").exists()


def test_a_run_without_metrics_is_an_error(tmp_path):
    """A run of TRL whose metrics were not kept leaves its arguments and token records."""
    write(tmp_path / "run" / "training_args.json", '{"cw_weights": "none"}')
    write_record(files_in(tmp_path / "run", weights="none"), 1, np.random.default_rng(1), {0: [40, 50]})
    code, printed = report(tmp_path / "run", a_run(tmp_path / "whole"), "--out", tmp_path / "out")
    assert code == 2 and "trainer.save_state()" in printed and not (tmp_path / "out").exists()
