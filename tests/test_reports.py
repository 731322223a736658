"""Reports: known logs and answers in, exact numbers out; broken folders, one clear sentence."""

from __future__ import annotations

import csv
import html
import itertools
import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from token_records import write_record
from typer.testing import CliRunner

from cw_plugin.cli import app
from cw_plugin.reports import figures
from cw_plugin.reports.comparison import compare
from cw_plugin.reports.covariance import table_1
from cw_plugin.reports.formats import Table
from cw_plugin.reports.intervals import holm, over_questions, over_seeds, pass_at_1
from cw_plugin.reports.runs import Run, read_run

ROOT = Path(__file__).parents[1]
REWARD, ENTROPY, NORM, ACCURACY = "critic/score/mean", "actor/entropy", "actor/grad_norm", "val-core/x/acc/mean@2"


def report(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return result.exit_code, result.stdout + result.stderr


def cells(file: Path) -> list[list[str]]:
    with file.open(encoding="utf-8") as lines:
        return list(csv.reader(lines))


def write_metrics(folder: Path, steps: dict[int, dict[str, float]], name: str = "metrics.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps.items()]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def write_config(folder: Path, kernel: str | None = None, seed: int = 1, **settings: object) -> Path:
    """What hydra saves, of what tells methods and seeds apart."""
    algorithm = {"adv_estimator": "cw_grpo"} | ({"cw_grpo": {"kernel": kernel}} if kernel else {})
    config = {"algorithm": algorithm, "data": {"seed": seed}, "trainer": settings}
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    return folder


def a_run(folder: Path, kernel: str | None = None, seed: int = 1, reward: float = 1.0, norm: float = 1.0,
          accuracy: float = 0.5, steps: int = 200, **settings: object) -> Path:  # fmt: skip
    """``reward`` is that of the last quarter of 200 steps, ``norm`` that of the first 100."""
    values = {
        step: {REWARD: reward if step > 150 else 9.0, ENTROPY: 0.1, NORM: norm if step <= 100 else 50.0}
        for step in range(1, steps + 1)
    }
    values[0], values[steps][ACCURACY] = {ACCURACY: 0.25}, accuracy
    return write_metrics(write_config(folder, kernel, seed, **settings), dict(sorted(values.items())))


def write_answers(folder: Path, step: int | None, temperature: float = 0.6, **answers: list[float]) -> Path:
    """As ``cw-grpo evaluate`` writes them: of each benchmark the grade of each question's answer."""
    folder.mkdir(parents=True)
    for name, grades in answers.items():
        about = {"step": step, "checkpoint": str(folder), "samples": 1}
        rollout = {"rollout": {"val_kwargs": {"temperature": temperature}}}
        settings = f"evaluation: {json.dumps(about)}\nactor_rollout_ref: {json.dumps(rollout)}\n"
        (folder / f"{name}.yaml").write_text(settings.replace("null", "null"))
        rows = [{"input": f"q{i}", "gts": "1", "acc": acc} for i, acc in enumerate(grades)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def grades(right: int, of: int) -> list[float]:
    return [float(i < right) for i in range(of)]


# Intervals and tests


def test_methods_are_compared_over_seeds():
    ours, theirs = [0.50, 0.60, 0.55, 0.58], [0.57, 0.69, 0.60, 0.66]
    paired = stats.ttest_rel(ours, theirs)
    found = over_seeds(pd.Series(ours, [1, 2, 3, 4]), pd.Series(theirs, [1, 2, 3, 4]).iloc[[3, 2, 0, 1]])
    assert (found.value, found.p, found.paired) == (pytest.approx(-0.0725), pytest.approx(paired.pvalue), True)
    assert (found.low, found.high) == pytest.approx(tuple(paired.confidence_interval()))
    welch = stats.ttest_ind(ours, theirs[:3], equal_var=False)
    for seeds in ([5, 2, 1], [math.nan] * 3, [1, 1, 2]):  # others, not known, or one twice
        found = over_seeds(pd.Series(ours, [1, 2, 3, 4]), pd.Series(theirs[:3], seeds))
        assert (found.paired, found.p) == (False, pytest.approx(welch.pvalue))
        assert (found.low, found.high) == pytest.approx(tuple(welch.confidence_interval()))
    # One run, and two seeds that differ alike, do not make a method certain.
    for one, other in (([0.5], [0.4]), ([0.5, 0.6], [0.4, 0.5])):
        found = over_seeds(pd.Series(one), pd.Series(other))
        assert found.value == pytest.approx(0.1) and math.isnan(found.low) and math.isnan(found.p)


def test_holm_corrects_the_smallest_p_most():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": math.nan}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.01, "b": 0.4}, tests=5) == pytest.approx({"a": 0.05, "b": 1.0})


def test_pass_at_1_has_an_interval_by_question():
    for right in (0, 3, 30):  # that none, or every one, was answered does not make certain that the next one is
        wilson = stats.binomtest(right, 30).proportion_ci(method="wilson")
        assert pass_at_1(grades(right, 30)) == pytest.approx((right / 30, wilson.low, wilson.high))
    means = [0.25, 0.5, 0.5, 0.75, 0.25]  # of several answers to each question
    assert pass_at_1(means) == pytest.approx((0.45, *stats.t.interval(0.95, 4, np.mean(means), stats.sem(means))))
    assert pass_at_1([0.5, 0.5]) == (0.5, 0.0, 1.0)


def test_checkpoints_are_compared_by_the_questions_that_both_were_asked():
    rng = np.random.default_rng(0)
    ours, theirs = (pd.Series(rng.integers(0, 5, 10) / 4) for _ in range(2))
    found = over_questions([ours], [pd.concat([theirs, pd.Series([1.0], ["other"])])])
    test = stats.ttest_rel(ours, theirs)
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(ours - theirs), *test.confidence_interval()))
    signs = np.array(list(itertools.product((-1, 1), repeat=10)))  # the exact test: every sign of every difference
    d = (ours - theirs).to_numpy()
    assert found.p == pytest.approx(np.mean(np.abs(signs @ d) >= abs(d.sum()) - 1e-12), abs=1e-9)
    # Of two benchmarks, the mean of their differences; the small one counts as much as the large one.
    large = pd.Series(grades(120, 200)), pd.Series(grades(100, 200))
    found = over_questions([ours, large[0]], [theirs, large[1]])
    assert found.value == pytest.approx((np.mean(d) + 0.1) / 2) and found.low < found.value < found.high


# What a run's folder holds


def as_tensorboard(folder: Path, steps: dict[int, dict[str, float]]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, data in steps.items():
            for key, value in data.items():
                writer.add_scalar(key, value, step)


def as_trl(folder: Path, steps: dict[int, dict[str, float]]) -> None:
    folder.mkdir()
    names = {ENTROPY: "entropy", REWARD: "eval_reward"}
    log = [{"step": step} | {names.get(key, key): value for key, value in data.items()} for step, data in steps.items()]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))


@pytest.mark.parametrize("write", [write_metrics, as_tensorboard, as_trl])
def test_every_logger_gives_the_same_series_of_finite_numbers(write, tmp_path):
    write(tmp_path / "run", {1: {ENTROPY: 0.5, "x": math.nan}, 2: {ENTROPY: 0.25, "x": -math.inf}, 3: {"x": 1.0}})
    run = read_run(tmp_path / "run")
    assert run.series(ENTROPY).to_dict() == {1: 0.5, 2: 0.25} and run.series("x").to_dict() == {3: 1.0}
    assert run.series("no such metric").empty


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("metrics.0.jsonl", "metrics.jsonl"),
        ("metrics-20261031-235959.jsonl", "metrics.jsonl"),
        ("metrics-20261031-235959.jsonl", "metrics-20261101-000003.jsonl"),
        ("metrics.9.jsonl", "metrics.10.jsonl"),
    ],
)
def test_what_a_resumed_run_measured_first_stays(first, then, tmp_path):
    """It validates the step anew from which it goes on; the log of one step is no new step."""
    write_metrics(tmp_path, {1: {"x": 1.0}, 10: {"x": 10.0, ACCURACY: 0.505}}, first)
    write_metrics(tmp_path, {10: {"x": 99.0, ACCURACY: 0.531, "y": 1.0}, 11: {"x": 11.0}}, then)
    run = read_run(tmp_path)
    assert run.series("x").to_dict() == {1: 1.0, 10: 10.0, 11: 11.0}
    assert run.accuracy.to_dict() == {10: 0.505} and run.series("y").to_dict() == {10: 1.0}


def test_a_line_that_is_being_written_and_the_lines_of_others_are_left_out(tmp_path):
    write_metrics(tmp_path, {1: {"x": 0.5}})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step":3,"data":{"x')
    (tmp_path / "7.jsonl").mkdir()
    (tmp_path / "5.jsonl").write_text('{"input": "q", "gts": "1", "score": 1.0}\n')
    (tmp_path / "settings.json").write_text('{"editor.tabSize": 4}')
    assert read_run(tmp_path).series("x").to_dict() == {1: 0.5}
    assert report(tmp_path, "--out", tmp_path / "out")[0] == 0


def test_methods_are_called_by_what_they_are(tmp_path):
    def named(kernel: str | None, loss: str = "vanilla", estimator: str = "cw_grpo", **trl: str) -> str:
        config = {"algorithm": {"adv_estimator": estimator, "cw_grpo": {"kernel": kernel}}}
        config["actor_rollout_ref"] = {"actor": {"policy_loss": {"loss_mode": loss}}}
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        (folder / ".hydra").mkdir(parents=True)
        if trl:
            (folder / "training_args.json").write_text(json.dumps(trl))
        else:
            (folder / ".hydra" / "config.yaml").write_text(json.dumps(config))
        return read_run(folder).name

    assert named("none") == named(None, estimator="grpo") == named("", cw_kernel="none", cw_scope="group") == "GRPO"
    assert named(None) == named("gaussian") == named("", cw_kernel="gaussian", cw_scope="group") == "CW-GRPO"
    assert (
        named(None, "clip_cov", "grpo") == "clip_cov" and named(None, "cw_grpo", "rloo") == "rloo, CW-GRPO in the loss"
    )
    assert named("my:kernel") == "CW-GRPO, kernel my:kernel"
    assert read_run(f"mine={tmp_path / 'run0'}").name == "mine"
    logged = {1: {"cw_grpo/effective_sample_share": 1.0, "cw_grpo/extreme_gradient_share": 0.8}}
    assert read_run(write_metrics(tmp_path / "other", logged)).is_grpo  # without a configuration
    logged[1]["cw_grpo/effective_sample_share"] = 0.9
    assert not read_run(write_metrics(tmp_path / "GRPO", logged)).is_grpo


# The comparison


def three_pairs(folder: Path) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {"GRPO": [], "CW-GRPO": []}
    for seed, (reward, accuracy) in enumerate(((1.40, 0.60), (1.45, 0.62), (1.50, 0.64)), 1):
        grpo = a_run(folder / f"grpo{seed}", "none", seed, reward, norm=2.0 + seed / 10, accuracy=accuracy)
        ours = a_run(
            folder / f"cw{seed}", None, seed, reward - 0.3 - seed / 100, 0.5, accuracy - 0.1 + seed / 100 * (seed < 3)
        )
        found["GRPO"].append(read_run(grpo))
        found["CW-GRPO"].append(read_run(ours))
    return found


def test_the_differences_and_what_they_show(tmp_path):
    table, sentences = compare(three_pairs(tmp_path))
    rows = {row[0]: row[1:] for row in table.frame.to_numpy().tolist()}
    low, high = stats.ttest_rel([0.51, 0.54, 0.54], [0.60, 0.62, 0.64]).confidence_interval()
    assert rows["Accuracy, step 200"] == ["62.0%", "53.0%", f"-9.0 points [{100 * low:+.1f}, {100 * high:+.1f}]*", "3"]
    assert rows["Reward, steps 151 to 200"][:2] == ["1.450", "1.130"]
    assert rows["Entropy, steps 151 to 200"] == ["0.100", "0.100", "+0.000", "3"]  # the same under all seeds
    logs = np.log([2.1, 2.2, 2.3])
    low, high = np.exp(stats.ttest_rel(np.log([0.5] * 3), logs).confidence_interval())
    shown = f"{np.exp(np.log(0.5) - logs.mean()):.3g} times [{low:.3g}, {high:.3g}]*"
    assert rows["Gradient norm, steps 1 to 100"] == ["2.20", "0.500", shown, "3"]
    assert sentences == [
        "CW-GRPO is lower in accuracy, reward and gradient norm.",
        "No difference is shown in entropy.",
        "Train GRPO and CW-GRPO with more seeds, such as data.seed=4 and 5.",
    ]
    assert "corrected for 3 tests (Holm)" in table.notes[1]


def test_one_run_of_each_has_no_interval_and_no_lower(tmp_path):
    """Ten neighbouring steps once gave "Reward: -0.052 [-0.102, -0.001]: lower"."""
    runs = {name: several[:1] for name, several in three_pairs(tmp_path).items()}
    table, sentences = compare(runs)
    assert table.frame["CW-GRPO less GRPO"].tolist() == ["-9.0 points", "-0.310", "+0.000", "0.238 times"]
    assert not re.search("lower|higher", " ".join(sentences)) and "another seed" in sentences[0] and not table.notes
    assert "Train GRPO and CW-GRPO with more seeds" in sentences[1]


def test_the_run_that_would_decide_is_named_in_the_words_of_its_host(tmp_path):
    runs = three_pairs(tmp_path)
    assert compare({"CW-GRPO": runs["CW-GRPO"][:1]})[1][1] == (
        "Train GRPO with seed 1: the same command, another folder, with +algorithm.cw_grpo.kernel=none."
    )
    assert "with algorithm.adv_estimator=cw_grpo" in compare({"GRPO": runs["GRPO"]})[1][1]
    metrics = runs["GRPO"][0].metrics
    trl = {name: [Run(name, Path(), metrics, {"cw_kernel": kernel, "seed": 7})]
           for name, kernel in (("GRPO", "none"), ("CW", "gaussian"))}  # fmt: skip
    said = " ".join([*compare(trl)[1], *compare({"CW": trl["CW"]})[1]])
    assert (
        "seed=1 and 2" in said
        and "data.seed" not in said
        and "with seed 7: the same command, another folder, with cw_" in said
    )
    for sentence in [*compare(trl)[1], *compare({"CW": trl["CW"]})[1], *compare(runs)[1], *compare({})[1]]:
        assert len(sentence.split()) <= 25


# The page and its files


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, str]:
    """The report of two methods, with two seeds each, token records, and an evaluation."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    arguments = []
    for seed, kernel in itertools.product((1, 2), ("none", None)):
        run = a_run(
            folder / f"{kernel}-{seed}",
            kernel,
            seed,
            reward=1 + seed / 10,
            accuracy=0.5 + seed / 100,
            lr=1e-5 * (not kernel),
        )
        write_record(run / "tokens" / "step_000001.parquet", rng, {0: [40, 50], 1: [30, 20]}, kernel or "gaussian")
        write_answers(
            folder / "evaluation" / f"{kernel}-{seed}", 200, aime24=grades(9 + seed, 30), amc23=grades(10 * seed, 40)
        )
        yaml = (folder / "evaluation" / f"{kernel}-{seed}").glob("*.yaml")
        for file in yaml:
            file.write_text(file.read_text().replace(str(file.parent), str(run / "global_step_200")))
        arguments.append(run)
    write_answers(folder / "evaluation" / "base", None, temperature=1.0, aime24=grades(3, 30), amc23=grades(20, 40))
    code, printed = report(*arguments, folder / "evaluation", "--out", folder / "out", "--paper", "all")
    assert code == 0, printed
    return folder / "out", printed


def test_table_2_and_the_papers_rows(written):
    out, _ = written
    rows = cells(out / "table2.csv")
    assert rows[0] == ["method", "AIME24", "AMC23", "average", "less base"]
    low, high = stats.binomtest(3, 30).proportion_ci(method="wilson")  # 3.5 to 25.6: Wilson (1927)
    assert rows[1] == ["base", f"10.0 (3 of 30) [{100 * low:.1f}, {100 * high:.1f}]", rows[1][2], "30.0", ""]
    # Two seeds: 10 and 11 of 30, 10 and 20 of 40; the average is that of the benchmarks.
    assert rows[2][0] == "GRPO, step 200" and rows[2][1].startswith("35.0 (21 of 60)")
    assert rows[2][2].startswith("37.5 (30 of 80)") and rows[2][3] == "36.2" and rows[2][4].startswith("'+6.2 [")
    # Of the paper's own rows, over these two benchmarks: (30.0 + 77.5) / 2, and (28.8 + 62.9) / 2 for its base.
    assert ["CW-GRPO (reported)", "30.0", "77.5", "53.8", "+7.9"] in rows
    assert cells(out / "comparison.csv")[1][0] == "Accuracy, AIME24, AMC23"  # and each method has its two seeds
    assert cells(out / "comparison.csv")[1][-1] == "2"


def test_tables_3_to_5(written):
    out, _ = written
    rows = cells(out / "table3.csv")
    assert rows[0] == ["method", "step", "entropy", "validation", "AIME24", "AMC23"]
    assert ["GRPO", "200", "0.100", "51.5", "35.0", "37.5"] in rows and ["GRPO", "0", "", "25.0", "", ""] in rows
    asked = {row[0]: row[1:] for row in cells(out / "table4.csv")}
    assert asked["actor_rollout_ref.rollout.val_kwargs.temperature"][-1] == "1.0"
    settings = {row[0]: row[1:] for row in cells(out / "table5.csv")}
    assert settings["data.seed"][:2] == ["1, 2", "1, 2"] and settings["trainer.lr"][:2] == ["0.0", "1e-05"]
    assert settings["algorithm.cw_grpo.kernel"][:2] == ["none", "-"]
    assert "The runs differ in trainer.lr, too (Table 5)" in (out / "report.md").read_text()


def test_table_1_reads_both_ways():
    tokens = pd.DataFrame({"covariance": [-4.0, -1.0, 1.0, 2.0, 8.0], "count": [10, 90, 80, 19, 1]})
    rows = {row[0]: row[1:5] for row in table_1("x", tokens).frame.to_numpy().tolist()}
    assert all(math.isnan(value) for value in rows["0.01%"])  # less than a token
    assert rows["1.00%"] == [8, 8, -4, -4]  # one token of 100
    assert rows["20.00%"] == [2, 2.3, -3.67, -2.5]  # 8 + 19 x 2 over 20; between the edges at 10 and 100
    assert rows["100.00%"] == [1, 1.26, -1, -1.3]


def test_every_figure_is_written_twice_and_the_page_stands_alone(written):
    out, printed = written
    page = (out / "report.html").read_text()
    assert not re.search(r"<script|@import|(src|href)=\"(https?:|//)", page) and "matplotlib" not in printed
    assert page.index("<figure") < page.index("CW-GRPO less GRPO") < page.index("<details")
    for name in ("reward", "accuracy", "entropy", "grad-norm", "contributions", "weights"):
        ElementTree.parse(out / f"{name}.svg")
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF") and f'href="{name}.svg"' in page
    assert all((out / link).is_file() for link in re.findall(r'href="([^"#]+)"', page))
    assert f"{out / 'report.html'}" in printed and "GRPO" in printed.splitlines()[0]
    visible = re.sub(r"<(style|svg)\b.*?</\1>|<[^>]+>", " ", page, flags=re.S)
    assert max(len(sentence.split()) for sentence in re.findall(r"[A-Z][^.:*]*\.\s", visible)) <= 25


def test_curves_show_mean_and_band_of_seeds_at_whole_steps():
    seeds = [pd.Series([1.0, 2.0, 3.0, 9.0], [1, 2, 3, 4]), pd.Series([3.0, 4.0, 5.0], [1, 2, 3])]
    figure = figures.curves({"_GRPO $x$": seeds, "none": [pd.Series(dtype=float)]}, "Entropy")
    (line,), (band,) = figure.axes[0].lines, figure.axes[0].collections
    assert line.get_xdata().tolist() == [1, 2, 3] and line.get_ydata().tolist() == [2.0, 3.0, 4.0]
    assert min(band.get_paths()[0].vertices[:, 1]) == pytest.approx(2 - math.sqrt(2))
    figure.draw_without_rendering()
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())
    (legend,) = figure.legends  # below the axes
    assert [text.get_text() for text in legend.get_texts()] == ["_GRPO $x$"]
    assert legend.get_window_extent().y1 <= figure.axes[0].get_window_extent().y0
    assert "_GRPO $x$" in "".join(ElementTree.fromstring(svg_of(figure)).itertext())
    smooth = figures.curves({"a": seeds[:1]}, "x", window=2).axes[0].lines[0].get_ydata()
    assert smooth.tolist() == [1.0, 1.5, 2.5, 6.0]


def svg_of(figure: figures.Figure) -> str:
    import io

    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(out, format="svg")
    return out.getvalue().decode()


def test_the_same_figure_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        figures.save(figures.curves({"a": [pd.Series([1.0, 2.0])]}, "x"), tmp_path / name, ["svg", "pdf", "png"])
    for kind in ("svg", "pdf", "png"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()


HOSTILE = ["=1+2", "+cmd", "-2+3|x", "@SUM(1)", "<script>alert(1)</script>", "[a](http://b)", "$x$ & _y_ \"'", "a|b"]


def test_names_are_shown_as_they_are_and_do_nothing(tmp_path):
    table = Table("t", "<script>", pd.DataFrame({"name": HOSTILE, "value": [-1.5] * 8}), ["[a](http://b)"])
    (tmp_path / "t.csv").write_text(table.csv())
    assert [row[0] for row in cells(tmp_path / "t.csv")[1:]] == [
        f"'{name}" if name[0] in "=+-@" else name for name in HOSTILE
    ]
    assert {row[1] for row in cells(tmp_path / "t.csv")[1:]} == {"-1.5"}  # a number stays one
    text = table.markdown()
    assert "<script" not in text and "](http" not in text and "\\$x\\$ &amp; \\_y\\_" in text
    assert all(line.replace("\\|", "").count("|") == 3 for line in text.splitlines()[2:12])
    assert r"\$x\$ \& \_y\_" in table.latex()
    names = HOSTILE[1:]  # what is before the first = is the name
    runs = [f"{name}={a_run(tmp_path / str(number), steps=2)}" for number, name in enumerate(names)]
    code, printed = report("--out", tmp_path / "out", "--", *runs)
    assert code == 0, printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page + (tmp_path / "out" / "report.md").read_text()
    shown = [html.unescape(name) for name in re.findall(r"<li><svg.*?</svg>(.*?) <span", page)]
    assert shown == names
    for cell in itertools.chain.from_iterable(map(cells, (tmp_path / "out").glob("*.csv"))):
        assert all(text[:1] not in tuple("=+-@") or text == "-" or float(text) < 9 for text in cell)


# Folders that hold something else


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def other_record(path: Path) -> None:
    (path / "tokens").mkdir(parents=True)
    pq.write_table(pa.table({"group": ["x"], "text": [1]}), path / "tokens" / "step_000001.parquet")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "holds no metrics"),
        (lambda path: write(path / "m.jsonl", '{"step": null, "data": {"x": 1}}\n'), "line 1: the step is None"),
        (lambda path: write(path / "m.jsonl", '{"step": 1e400, "data": {"x": 1}}\n'), "line 1: the step is inf"),
        (lambda path: write(path / "m.jsonl", "{\n{}\n"), "m.jsonl, line 1 is not JSON"),
        (lambda path: write(path / "trainer_state.json", '{"log_history": 3}'), "trainer_state.json is not what"),
        (lambda path: write(path / ".hydra/config.yaml", "- 1\n- 2\n"), "config.yaml is a list"),
        (lambda path: write(path / ".hydra/config.yaml", "a: [1\n"), "config.yaml cannot be read"),
        (lambda path: write_answers(path, 1, amc23=["right"]), "line 1: acc is 'right', not a number"),
        (lambda path: write_answers(path, 1, amc23=[]), "amc23.jsonl is empty"),
        (lambda path: [a_run(path / name, steps=12) for name in "ab"], "holds 2 runs"),
    ],
)  # fmt: skip
def test_a_bad_folder_ends_in_one_sentence(make, message, tmp_path):
    make(tmp_path / "run")
    code, printed = report(tmp_path / "run", "--out", tmp_path / "out")
    assert code == 2 and message in printed and "Traceback" not in printed
    assert printed.count("Error:") == 1 and not (tmp_path / "out").exists()


def test_what_cannot_be_shown_is_said_beside_the_rest(tmp_path):
    run = a_run(tmp_path / "run", steps=12)
    other_record(run)
    code, printed = report(run, "--out", tmp_path / "out")
    assert code == 0 and "CW-GRPO: no tokens;" in printed and "step_000001.parquet cannot be read" in printed
    assert "cannot be read as a token record" in (tmp_path / "out" / "report.html").read_text()
    for arguments, message in (
        ((run, run), "is given twice"),
        ((run, "--out", "/proc/x"), "/proc/x cannot be written"),
        (
            (write_answers(tmp_path / "e", 5, amc23=[1.0]), "--step", 4),
            "nothing was evaluated at step 4; there are answers at 5",
        ),
        ((tmp_path / "e", "--base", "x"), "no evaluation named x"),
        (("=x",), "has no name before the ="),
    ):
        code, printed = report("--out", tmp_path / "out", *arguments)
        assert code == 2 and message in printed and "Traceback" not in printed


def test_runs_that_are_no_seeds_of_one_method_get_names_of_their_own(tmp_path):
    for name, lr, seed in (("a", 1, 1), ("b", 1, 2), ("c", 2, 3)):
        a_run(tmp_path / name, None, seed, lr=lr, steps=12)
    _, printed = report(*(tmp_path / name for name in "abc"), "--out", tmp_path / "out")
    assert f"CW-GRPO, {tmp_path.name}/c less CW-GRPO" in printed
    assert (tmp_path / "out" / "report.html").read_text().count("2 runs, 12 steps") == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from cw_plugin import files

def half(path):
    path.write_bytes(Path(sys.argv[1]).read_bytes()[:-10])
    os.kill(os.getpid(), signal.SIGKILL)

files.write_whole(Path(sys.argv[1]), half)
"""


def test_a_file_whose_writer_was_killed_is_no_result(tmp_path):
    run = a_run(tmp_path / "run", steps=2)
    write_record(run / "tokens" / "step_000001.parquet", np.random.default_rng(0), {0: [5, 5]})
    write_answers(tmp_path / "base", None, amc23=[1.0, 0.0])
    _, before = report(run, tmp_path / "base", "--out", tmp_path / "out")
    for name in ("amc23.jsonl", "metrics.jsonl", "step_000001.parquet"):
        (victim,) = tmp_path.rglob(name)
        whole = victim.read_bytes()
        killed = subprocess.run([sys.executable, "-c", KILLED, victim], cwd=ROOT, timeout=60)
        assert killed.returncode == -signal.SIGKILL and victim.read_bytes() == whole
        assert any(".part" in path.name for path in victim.parent.iterdir())
    assert report(run, tmp_path / "base", "--out", tmp_path / "out") == (0, before)
