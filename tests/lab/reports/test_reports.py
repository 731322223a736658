"""Reports: known logs and answers in, exact numbers out; broken folders, one clear sentence."""

import csv
import html
import itertools
import json
import math
import re
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from graded_answers import answered
from hypothesis import given
from hypothesis import strategies as st
from interpreter import cli
from scipy import stats
from token_records import files_in, write_record

from cw_plugin.lab.evaluation.answers import Answers
from cw_plugin.lab.reports import figures
from cw_plugin.lab.reports.comparison import compare
from cw_plugin.lab.reports.covariance import table_1
from cw_plugin.lab.reports.formats import Table
from cw_plugin.lab.reports.inputs import read_inputs
from cw_plugin.lab.reports.runs import all_metrics, read_run
from cw_plugin.lab.reports.scores import answers_frame, checkpoints, last_scores, tries
from cw_plugin.lab.reports.sentences import sentences
from cw_plugin.lab.reports.tables import differences_table

REWARD, ENTROPY, NORM, ACCURACY = "critic/score/mean", "actor/entropy", "actor/grad_norm", "val-core/x/acc/mean@2"


def report(*arguments: object) -> tuple[int, str]:
    result = cli("report", *arguments)
    return result.exit_code, result.stdout + result.stderr


def cells(file: Path) -> list[list[str]]:
    with file.open(encoding="utf-8") as lines:
        return list(csv.reader(lines))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_metrics(folder: Path, steps: dict[int, dict[str, float]], name: str = "metrics.jsonl") -> Path:
    lines = [json.dumps({"step": step, "data": data}) + "\n" for step, data in steps.items()]
    write(folder / name, "".join(lines))
    return folder


def a_run(folder: Path, kernel: str | None = None, seed: int = 1, reward: float = 1.0, norm: float = 1.0,
          accuracy: float = 0.5, steps: int = 200, lr: float = 1.0) -> Path:  # fmt: skip
    """``reward`` is that of the last quarter of 200 steps, ``norm`` that of the first 100."""
    algorithm = {"adv_estimator": "cw_grpo"} | ({"cw_grpo": {"kernel": kernel}} if kernel else {})
    config = {"algorithm": algorithm, "data": {"seed": seed}, "trainer": {"lr": lr}}
    write(folder / ".hydra" / "config.yaml", json.dumps(config))  # JSON is YAML
    values = {step: {REWARD: reward if step > 150 else 9.0, ENTROPY: 0.1, NORM: norm if step <= 100 else 50.0}
              for step in range(1, steps + 1)}  # fmt: skip
    values[steps][ACCURACY] = accuracy
    return write_metrics(folder, {0: {ACCURACY: 0.25}} | values)


def write_answers(folder: Path, step: int | None, checkpoint: Path | None = None, **answers: pd.Series) -> None:
    """Of each benchmark the grade of each question's answer."""
    for name, of_questions in answers.items():
        answered(folder, name, [[acc] for acc in of_questions], step, 0.6 if step else 1.0, checkpoint or "a/model")


def grades(right: int, of: int) -> pd.Series:
    return pd.Series([float(i < right) for i in range(of)])


def as_tensorboard(folder: Path, steps: dict[int, dict[str, float]]) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, data in steps.items():
            for key, value in data.items():
                writer.add_scalar(key, value, step)


def as_file_logger(folder: Path, steps: dict[int, dict[str, float]]) -> None:
    """By verl's own class."""
    folder.mkdir()
    tracking = pytest.importorskip("verl.utils.tracking", reason="needs verl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_FILE_LOGGER_PATH", str(folder / "metrics.jsonl"))
        logger = tracking.FileLogger("project", "experiment")
    for step, data in steps.items():
        logger.log(data, step)
    logger.finish()


@pytest.mark.parametrize("write_log", [write_metrics, as_tensorboard, as_file_logger])
def test_verls_loggers_give_the_same_series_of_finite_numbers(write_log, tmp_path):
    """test_trl.py reads TRL's."""
    write_log(tmp_path / "run", {1: {ENTROPY: 0.5, "x": math.nan}, 2: {ENTROPY: 0.25, "x": -math.inf}, 3: {"x": 1.0}})
    run = read_run(tmp_path / "run")
    assert run.series(ENTROPY).to_dict() == {1: 0.5, 2: 0.25} and run.series("x").to_dict() == {3: 1.0}
    assert run.metrics["x"].to_dict() == {1: math.inf, 2: math.inf, 3: 1.0}  # logged, and not finite


@pytest.mark.parametrize(
    "names", ["metrics.9 metrics.10 metrics", "metrics-20261031-235959 metrics-20261101-000001 metrics", ""]
)
def test_the_curve_is_the_trained_models_after_restarts(names, tmp_path):
    """Killed at step 3, before the first checkpoint; then at step 12, after one at step 10, which verl validates anew.
    The last start is still writing."""
    starts = [
        {0: {ACCURACY: 0.25}, 1: {"x": 1.0}, 2: {"x": 2.0}, 3: {"x": 3.0, "lost": 1.0}},
        {0: {ACCURACY: 0.26}, 1: {"x": 1.1}, 2: {"x": 2.1}, 10: {"x": 10.1, ACCURACY: 0.5}, 12: {"x": 12.1}},
        {10: {ACCURACY: 0.53}, 11: {"x": 11.2}},
    ]
    for place, steps in enumerate(starts):
        write_metrics(tmp_path, steps, f"{names.split()[place]}.jsonl") if names else as_tensorboard(tmp_path, steps)
    write(tmp_path / "7.jsonl", '{"step":12,"data":{"x')
    (tmp_path / "8.jsonl").mkdir()
    write(tmp_path / ".metrics.jsonl.1.part", "the process was killed")
    write(tmp_path / "5.jsonl", '{"input": "q", "gts": "1", "score": 1.0}\n')
    write(tmp_path / "settings.json", '{"editor.tabSize": 4}')
    run = read_run(tmp_path)
    assert run.series("x").to_dict() == pytest.approx({1: 1.1, 2: 2.1, 10: 10.1, 11: 11.2})
    assert run.accuracy.to_dict() == pytest.approx({0: 0.26, 10: 0.53})
    assert run.series("lost").empty and run.repeated == [1, 2, 3, 12]
    code, printed = report(tmp_path, "--out", tmp_path / "out")
    assert code == 0 and f"{tmp_path} repeated steps 1 to 3 and 12 after a restart" in printed
    assert "repeated steps 1 to 3 and 12" in (tmp_path / "out" / "report.html").read_text()


@given(starts=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=5))
def test_each_step_is_that_of_the_last_start_that_trained_it_on_what_is_left(starts):
    """A start goes on after a checkpoint, and trains a few steps; what an earlier one trained after it is lost."""
    kept: dict[int, int] = {}
    repeated: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        for number, (place, trained) in enumerate(starts):
            checkpoint = min(place, max(kept, default=0))
            steps = range(checkpoint + 1, checkpoint + 1 + trained)
            write_metrics(Path(folder), {step: {"x": number} for step in steps}, f"metrics.{number}.jsonl")
            repeated |= {step for step in kept if step > checkpoint}
            kept = {step: start for step, start in kept.items() if step <= checkpoint} | dict.fromkeys(steps, number)
        run = read_run(folder)
    assert run.series("x").to_dict() == kept and run.repeated == sorted(repeated)


def test_of_trls_states_the_last_is_read(tmp_path):
    """Each checkpoint has one, and the folder too, after save_state()."""

    def write_state(folder: Path, last: int, **at_the_end: float) -> None:
        log = [{"step": step, "reward": step} for step in range(1, last + 1)] + [{"step": last, **at_the_end}]
        write(folder / "trainer_state.json", json.dumps({"log_history": log}))

    for folder, last in (("", 1), ("checkpoint-2", 2), ("checkpoint-10", 10)):
        write_state(tmp_path / folder, last)
    assert read_run(tmp_path).series(REWARD).index.tolist() == [*range(1, 11)]
    write_state(tmp_path, 10, train_loss=0.5)
    assert read_run(tmp_path).series("train_loss").to_dict() == {10: 0.5}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("GRPO", {"algorithm": {"adv_estimator": "cw_grpo", "cw_grpo": {"kernel": "none"}}}),
        ("GRPO", {"algorithm": {"adv_estimator": "grpo"}}),
        ("GRPO", {"cw_kernel": "none", "cw_scope": "group"}),
        ("CW-GRPO", {"algorithm": {"adv_estimator": "cw_grpo"}}),
        ("CW-GRPO, batch", {"cw_kernel": "gaussian", "cw_scope": "batch"}),
        ("CW-GRPO, kernel my:kernel", {"algorithm": {"adv_estimator": "cw_grpo", "cw_grpo": {"kernel": "my:kernel"}}}),
        ("clip_cov", {"algorithm": {"adv_estimator": "grpo"},
                      "actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "clip_cov"}}}}),
    ],
)  # fmt: skip
def test_methods_are_called_by_what_they_are(name, config, tmp_path):
    write(tmp_path / ("training_args.json" if "cw_kernel" in config else ".hydra/config.yaml"), json.dumps(config))
    assert read_run(tmp_path).name == name and read_run(f"mine={tmp_path}").name == "mine"
    assert read_run(f"mine={tmp_path}").is_grpo == (name == "GRPO")
    assert read_run(f"GRPO={tmp_path}").is_grpo == ("CW-GRPO" not in name)  # also that of another loss or estimator


def compared(folder: Path, *seeds: int, methods: tuple = ("none", None)) -> tuple[list[list], list[str]]:
    runs = [
        read_run(a_run(folder / f"{kernel}{seed}", kernel, seed, 1.35 + seed / 20 - (0.3 + seed / 100) * (not kernel),
                       2 + seed / 10 if kernel else 0.5, 0.58 + seed / 50 - (0 if kernel else 0.1 - seed % 3 / 100)))
        for kernel in methods for seed in seeds
    ]  # fmt: skip
    comparison = compare(all_metrics(runs), {run.name: run.is_grpo for run in runs}, pd.DataFrame())
    said = sentences(comparison)
    assert all(len(sentence.split()) <= 25 for sentence in said)
    return differences_table(comparison).frame.to_numpy().tolist(), said


def test_the_differences_and_what_they_show(tmp_path):
    rows, sentences = compared(tmp_path, 1, 2, 3)
    low, high = stats.ttest_rel([0.51, 0.54, 0.54], [0.60, 0.62, 0.64]).confidence_interval()
    gap = f"-9.0 points [{100 * low:+.1f}, {100 * high:+.1f}]*"
    assert rows[0] == ["Accuracy, step 200", "62.0%", "53.0%", gap, "3"]
    assert rows[1][:3] == ["Reward, steps 151 to 200", "1.450", "1.130"]
    assert rows[2] == ["Entropy, steps 151 to 200", "0.100", "0.100", "+0.000", "3"]  # the same under all seeds
    logs = np.log([2.1, 2.2, 2.3])
    low, high = np.exp(stats.ttest_rel(np.log([0.5] * 3), logs).confidence_interval())
    ratio = f"{0.5 / np.exp(logs.mean()):.3g} [{low:.3g}, {high:.3g}]*"
    assert rows[3][:3] == ["Gradient norm, steps 1 to 100", "2.20", "0.500"] and pd.isna(rows[3][3])
    assert rows[4][:3] == ["Gradient norm, ratio to GRPO", "1", ratio] and pd.isna(rows[4][3])
    assert sentences == [
        "CW-GRPO is lower in accuracy, reward and gradient norm.",
        "No difference in entropy is significant.",
        "Train GRPO and CW-GRPO with more seeds, such as 4 and 5.",
    ]


def test_one_run_of_each_has_no_interval_and_no_lower(tmp_path):
    """Ten neighbouring steps once gave "Reward: -0.052 [-0.102, -0.001]: lower"."""
    rows, sentences = compared(tmp_path / "both", 1)
    assert [row[3] for row in rows[:3]] == ["-9.0 points", "-0.310", "+0.000"] and rows[4][1:3] == ["1", "0.238"]
    assert sentences[0].endswith("another seed may change the sign of each difference.") and len(sentences) == 2
    for kernel, missing in (("none", "Train CW-GRPO with the same"), (None, "Train GRPO with the same")):
        assert missing in compared(tmp_path / str(kernel), 1, methods=(kernel,))[1][1]


def logged(folder: Path, kernel: str | None, steps: dict[int, dict[str, float]], seed: int = 1) -> Path:
    a_run(folder, kernel, seed, steps=1)
    return write_metrics(folder, steps)


def table(*runs: Path, out: Path) -> tuple[dict[str, list[str]], str]:
    """The table of differences, by its first column, and what is printed."""
    code, printed = report(*runs, "--out", out)
    assert code == 0, printed
    return {row[0]: row[1:] for row in cells(out / "comparison.csv")}, printed


def test_a_run_that_turns_nan_is_not_compared_by_its_good_half(tmp_path):
    good = {step: {REWARD: 1.0, NORM: 1.0, ENTROPY: 0.1} for step in range(1, 9)}
    good[3] = good[3] | {NORM: math.inf}  # a single overflow of float16 breaks nothing
    bad = {step: {REWARD: math.nan, NORM: math.nan, ENTROPY: 0.1} if step > 5 else good[1] for step in range(1, 9)}
    grpo = [logged(tmp_path / f"grpo-{seed}", "none", good, seed) for seed in (1, 2)]
    ours = [logged(tmp_path / f"cw-{seed}", None, steps, seed) for seed, steps in ((1, good), (2, bad))]
    rows, printed = table(*grpo, *ours, out=tmp_path / "out")
    assert rows["Reward, steps 1 to 8"] == ["1.000", "not finite from step 6", "", "2"]
    assert rows["Gradient norm, steps 1 to 8"] == ["1.00", "not finite from step 6", "", "2"]
    assert rows["Entropy, steps 1 to 8"] == ["0.100", "0.100", "+0.000", "2"] and len(rows) == 4
    said = "CW-GRPO with seed 2 broke down: its reward and gradient norm are NaN or infinite from step 6 of 8 on."
    assert said in printed and said in (tmp_path / "out" / "report.html").read_text()
    lines = ElementTree.parse(tmp_path / "out" / "reward.svg").getroot()
    assert "CW-GRPO" in "".join(lines.itertext())
    series = {"CW": [pd.Series([1.0, 2.0, math.nan], [1, 2, 3]), pd.Series([3.0, 4.0, 5.0], [1, 2, 3])]}
    (line,) = figures.curves(series, "Reward").axes[0].lines  # not one seed in place of two
    assert line.get_xdata().tolist() == [1, 2] and line.get_ydata().tolist() == [2.0, 3.0]


def test_runs_are_compared_over_the_steps_that_all_have(tmp_path):
    """And over the validation sets that each run has at a step, and a step that each has validated."""
    a, b = "val-core/a/acc/mean@1", "val-core/b/acc/mean@1"
    long = {step: {REWARD: step / 100} for step in range(201)}
    long[50] |= {a: 0.5, b: 0.3}
    long[90] |= {a: 0.9}  # b was not asked
    long[200] |= {a: 0.1, b: 0.1}
    short = {step: {REWARD: step / 100 + 0.25} for step in range(101)}
    short[50] |= {a: 0.6, b: 0.4}
    short[90] |= {a: 0.8}
    short[100] |= {a: 0.7, b: 0.7}
    long[0] = short[0] = {a: 0.2, b: 0.2}  # which no method has trained
    runs = [logged(tmp_path / "grpo", "none", long), logged(tmp_path / "cw", None, short)]
    rows, _ = table(*runs, out=tmp_path / "out")
    assert rows["Accuracy, step 50"] == ["40.0%", "50.0%", "+10.0 points", "1"]
    assert rows["Reward, steps 76 to 100"] == ["0.880", "1.130", "+0.250", "1"]
    runs[1] = logged(tmp_path / "cw", None, {step: short[step] for step in short if step != 50})
    rows, printed = table(*runs, out=tmp_path / "out")
    assert not any(row.startswith("Accuracy") for row in rows)
    assert "no step was validated in every run. Last: 200 of GRPO and 100 of CW-GRPO." in printed


def test_checkpoints_are_compared_with_the_right_one_at_the_same_step(tmp_path):
    for method, step, right in (("GRPO", 50, 2), ("GRPO", 100, 5), ("CW-GRPO", 50, 4), ("CW-GRPO", 100, 8)):
        write_answers(tmp_path / "trained" / f"{method}-global_step_{step}", step, aime24=grades(right, 10))
    code, printed = report(tmp_path / "trained", "--out", tmp_path / "out")
    assert code == 0, printed
    header, *rows = cells(tmp_path / "out" / "table2.csv")
    assert header[-1] == "less CW-GRPO"  # without an untrained model, the first
    assert [(*row[:2], row[-1].partition(" ")[0]) for row in rows] == [
        ("CW-GRPO", "50", ""), ("CW-GRPO", "100", ""), ("GRPO", "50", "-20.0"), ("GRPO", "100", "-30.0")
    ]  # fmt: skip
    write_answers(tmp_path / "base", None, aime24=grades(1, 10))
    assert report(tmp_path / "trained", tmp_path / "base", "--out", tmp_path / "out")[0] == 0
    header, *rows = cells(tmp_path / "out" / "table2.csv")
    assert header[-1] == "less base" and [row[-1].partition(" ")[0] for row in rows] == [
        "", "+30.0", "+70.0", "+10.0", "+40.0"
    ]  # fmt: skip
    assert [row[-1].endswith("*") for row in rows] == [False, False, True, False, False]  # p = 2 / 2^7, and 2 / 2^4
    found = {row[0]: row[1:] for row in cells(tmp_path / "out" / "comparison.csv")}
    assert found["Accuracy, AIME24, step 100"] == ["80.0%", "50.0%", "+30.0 points", "1"]  # of the last step alone


def asked(method: str, seed: int, step: int, **grades_of: float) -> list[Answers]:
    """A run's answers to ten questions of each benchmark, with this accuracy."""
    file = Path(f"{method}-{seed}-{step}") / "answers.jsonl"
    return [
        Answers(method, step, name, {str(i): [float(i < 10 * accuracy)] for i in range(10)}, file=file, seed=seed)
        for name, accuracy in grades_of.items()
    ]


def test_accuracy_is_that_of_what_all_runs_were_asked(tmp_path):
    """Of the last step and of the benchmarks that all have: a missing one would count as a difference."""
    early = [answer for method in ("GRPO", "CW") for answer in asked(method, 1, 50, aime24=0.1, math500=0.5)]
    grpo = [*asked("GRPO", 1, 100, aime24=0.2, math500=0.8), *asked("GRPO", 2, 100, aime24=0.2, math500=0.8)]
    cw = [*asked("CW", 1, 100, aime24=0.2, math500=0.8), *asked("CW", 2, 100, math500=0.7)]
    later = asked("GRPO", 1, 150, aime24=1.0, math500=1.0)

    def compared(*answers: Answers) -> tuple[set[str], list[float]]:
        scores = last_scores(answers_frame(answers))
        return set(scores.metric), sorted(scores.value)

    assert compared(*early, *grpo, *cw, *later) == ({"MATH-500, step 100"}, [0.7, 0.8, 0.8, 0.8])
    assert compared(*early, *grpo, *later) == ({"AIME24, MATH-500, step 50"}, [0.3, 0.3])
    assert compared(*grpo, *asked("CW", 1, 50, math500=1.0)) == (set(), [])
    assert compared(*asked("GRPO", 1, 9, aime24=0.5), *asked("CW", 1, 9, math500=0.5)) == (set(), [])

    runs = [a_run(tmp_path / name, kernel, accuracy=0.5) for name, kernel in (("grpo", "none"), ("cw", None))]
    write_answers(tmp_path / "cw" / "evaluation", 200, runs[1] / "global_step_200", aime24=grades(9, 10))
    rows, _ = table(*runs, out=tmp_path / "out")
    assert rows["Accuracy, step 200"] == ["50.0%", "50.0%", "+0.0 points", "1"]  # one method was evaluated


def test_runs_are_seeds_only_if_their_settings_show_it(tmp_path):
    """OpenRLHF and ms-swift write no settings; then a run is called as its folder is."""
    unknown = [
        write_metrics(tmp_path / name, {1: {REWARD: 1.0}})
        for name in ("x/Qwen-1.5B-cw", "x/Qwen-1.5B-grpo", "y/Qwen-1.5B-cw")
    ]
    names = ("a/metrics.jsonl", "b/metrics.jsonl", "logs/grpo.jsonl", "logs/cw.jsonl")
    files = [
        write_metrics(tmp_path / name.split("/")[0], {1: {REWARD: 1.0}}, name.split("/")[1]) / name.split("/")[1]
        for name in names
    ]
    known = [
        a_run(tmp_path / name, None, seed, lr=lr, steps=1)
        for name, seed, lr in (("1", 1, 1), ("2", 1, 2), ("3", 2, 2), ("4", 2, 1))
    ]
    names = [run.name for run in read_inputs([*map(str, unknown), *map(str, files), *map(str, known)]).runs]
    of_settings = ["CW-GRPO", f"CW-GRPO, {tmp_path.name}/2"]
    assert names == [
        "Qwen-1.5B-cw",
        "Qwen-1.5B-grpo",
        "Qwen-1.5B-cw, y/Qwen-1.5B-cw",
        *("a", "b", "grpo", "cw"),
        *of_settings,
        *of_settings[::-1],
    ]


def test_checkpoints_of_other_hosts_have_the_step_in_the_name_of_their_folder(tmp_path):
    run = write_metrics(tmp_path / "trl=grpo", {100: {ENTROPY: 0.25}, 200: {ENTROPY: 0.5}})
    write(run / "training_args.json", '{"cw_kernel": "none"}')
    models = {"checkpoint-100": 2, "checkpoint-200": 6, "merged": 9, "base": 1}
    for name, right in models.items():
        place = tmp_path / name if name == "base" else run / name
        write_answers(tmp_path / "evaluation" / name, None, place, aime24=grades(right, 10))
    code, printed = report(run, tmp_path / "evaluation", "--out", tmp_path / "out")
    assert code == 0, printed
    rows = {tuple(row[:3]): row[3].partition(" ")[0] for row in cells(tmp_path / "out" / "table2.csv")[1:]}
    assert rows == {
        ("GRPO", "100", "0.25"): "20.0", ("GRPO", "200", "0.5"): "60.0",
        ("GRPO, merged", "", ""): "90.0", ("base", "", ""): "10.0",
    }  # fmt: skip
    assert report(run / "metrics.jsonl", tmp_path / "evaluation", "--out", tmp_path / "file")[0] == 0
    assert {row[1] for row in cells(tmp_path / "file" / "table2.csv")[1:]} == {"100", "200", ""}
    write_answers(run / "evaluation" / "merged", None, run / "merged", amc23=grades(3, 40))  # within the run's folder
    assert report(run, tmp_path / "evaluation", "--out", tmp_path / "out")[0] == 0
    assert {row[0] for row in cells(tmp_path / "out" / "table2.csv")[1:]} == {"GRPO", "GRPO, merged", "base"}


def test_a_checkpoint_that_was_evaluated_twice_is_one_run(tmp_path):
    for method, right in (("GRPO", 3), ("CW-GRPO", 8)):
        place = tmp_path / method / "global_step_9"
        for folder in ("first", "second"):
            write_answers(tmp_path / folder / f"{method}-global_step_9", 9, place, aime24=grades(right, 10))
    rows, printed = table(tmp_path / "first", tmp_path / "second", out=tmp_path / "out")
    assert rows["Accuracy, AIME24, step 9"] == ["80.0%", "30.0%", "+50.0 points", "1"]
    assert "One run does not tell methods apart" in printed and "is significant" not in printed
    assert "Train CW-GRPO and GRPO with more seeds." in printed  # the runs are not there, so their seeds are not known


def test_accuracy_goes_on_when_each_question_gets_another_number_of_answers(tmp_path):
    """A start that goes on validates the checkpoint once more, here that of step 3."""
    first, second = "val-core/x/acc/mean@1", "val-core/x/acc/mean@4"
    write_metrics(tmp_path, {1: {first: 0.1}, 2: {"x": 1.0}, 3: {first: 0.2}}, "metrics.1.jsonl")
    run = read_run(write_metrics(tmp_path, {3: {second: 0.9}, 4: {second: 0.3}}))
    assert run.accuracy.to_dict() == {1: 0.1, 3: 0.9, 4: 0.3}


def test_what_is_of_one_run_is_said_apart_from_what_was_tested(tmp_path):
    runs = [(kernel, seed) for kernel in ("none", None) for seed in (1, 2, 3)]
    folders = [a_run(tmp_path / f"{kernel}-{seed}", kernel, seed, reward=1 + seed / 10) for kernel, seed in runs]
    other = f"other={a_run(tmp_path / 'other', 'my:kernel', 1)}"
    _, printed = table(*folders, other, out=tmp_path / "out")
    assert "0 of 4 differences to GRPO are significant (star)." in printed
    said = "For other, the difference in accuracy, reward, entropy and gradient norm is of one run: another seed may"
    assert said in printed and "Train GRPO, CW-GRPO and other with more seeds, such as 4 and 5." in printed


def test_answers_that_cannot_be_compared_are_said(tmp_path):
    for name, step in (("GRPO", 200), ("CW", 150)):
        write_answers(tmp_path / "evaluation" / f"{name}-global_step_{step}", step, aime24=grades(5, 10))
    _, printed = report(tmp_path / "evaluation", "--out", tmp_path / "out")
    assert "Accuracy is not that of the evaluation: at no step did all methods answer the same benchmark." in printed
    for model in (tmp_path / "evaluation").iterdir():
        (model / "aime24.jsonl").unlink()
    code, printed = report(tmp_path / "evaluation", "--out", tmp_path / "out")
    assert code == 2
    for name in ("CW-global_step_150", "GRPO-global_step_200"):
        assert f"{name} is not finished on aime24: evaluate it again to complete it." in printed


def test_models_that_are_no_checkpoint_keep_their_names_beside_others(tmp_path):
    for name, right in (("Qwen", 3), ("tuned", 8)):
        write_answers(tmp_path / "evaluation" / name, None, aime24=grades(right, 10))
    write_answers(tmp_path / "one" / "tuned", None, aime24=grades(8, 10))
    write_answers(tmp_path / "evaluation" / "run-global_step_9", 9, aime24=grades(5, 10))
    code, printed = report(f"X={tmp_path / 'evaluation'}", f"Y={tmp_path / 'one'}", "--out", tmp_path / "out")
    assert code == 0, printed
    rows = {row[0]: row[3].split(" ")[0] for row in cells(tmp_path / "out" / "table2.csv")[1:]}
    assert rows == {"Qwen": "30.0", "tuned": "80.0", "X": "50.0", "Y": "80.0"}
    write_answers(tmp_path / "evaluation" / "another-global_step_9", 9, aime24=grades(7, 10))
    assert report(f"X={tmp_path / 'evaluation'}", "--out", tmp_path / "out")[0] == 0
    assert {row[0] for row in cells(tmp_path / "out" / "table2.csv")[1:]} == {"Qwen", "tuned", "run", "another"}


def test_answers_alone_do_not_say_which_method_is_grpo(tmp_path):
    for name in ("run-cw_grpo", "run-grpo"):
        write_answers(tmp_path / "evaluation" / f"{name}-global_step_9", 9, aime24=grades(5, 10))
    _, printed = report(tmp_path / "evaluation", "--out", tmp_path / "out")
    assert "Which of run-cw_grpo and run-grpo is plain GRPO is not known: give its folder as GRPO=FOLDER." in printed


def test_pass_at_k_is_shown_where_questions_were_asked_several_times(tmp_path):
    right = {"base": [0, 1, 4, 8, 0, 2], "GRPO-global_step_9": [0, 0, 8, 8, 8, 0], "CW-GRPO-global_step_9": [1] * 6}
    for model, of_questions in right.items():
        grades_of = [[1] * n + [0] * (8 - n) for n in of_questions]
        step = 9 if "step" in model else None
        answered(tmp_path / "evaluation" / model, "amc23", grades_of, step, checkpoint="a/model")
    assert report(tmp_path / "evaluation", "--out", tmp_path / "out")[0] == 0
    header, *rows = cells(tmp_path / "out" / "pass-at-k.csv")
    assert header == ["method", "step", "k", "AMC23", "average", "less base", "less GRPO"]
    assert [row[:3] for row in rows[:3]] == [["base", "", "1"], ["CW-GRPO", "9", "1"], ["GRPO", "9", "1"]]
    found = {(row[0], int(row[2])): row[3:] for row in rows}
    assert {k for _, k in found} == {1, 4, 8}

    def by_hand(model: str, k: int) -> pd.Series:
        return pd.Series([1 - stats.hypergeom(8, n, k).pmf(0) for n in right[model]])

    four = by_hand("base", 4)
    low, high = stats.t.interval(0.95, 5, four.mean(), stats.sem(four))
    expected = f"{100 * four.mean():.1f} [{max(0, 100 * low):.1f}, {min(100, 100 * high):.1f}]"
    assert found["base", 4][0] == expected
    wilson = stats.binomtest(3, 6).proportion_ci(method="wilson")  # with k = n, a question is solved or not
    assert found["GRPO", 8][0] == f"50.0 [{100 * wilson.low:.1f}, {100 * wilson.high:.1f}]"
    assert found["base", 4][2:] == ["", ""]  # with which the trained models are compared
    d = by_hand("CW-GRPO-global_step_9", 4) - by_hand("GRPO-global_step_9", 4)
    interval = stats.ttest_1samp(d, 0).confidence_interval()
    assert found["CW-GRPO", 4][3] == f"{100 * d.mean():+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "pass@k of checkpoints" in page and "Chen et al. 2021" in page


@pytest.mark.parametrize(
    ("answers", "ks"), [(1, []), (2, [1, 2]), (5, [1, 4, 5]), (16, [1, 4, 16]), (20, [1, 4, 16, 20])]
)
def test_k_is_every_power_of_four_below_the_number_of_answers_and_then_this_number(answers, ks):
    assert tries(answers_frame([Answers("base", None, "x", {"question": answers * [1.0]})])) == ks


def test_pass_at_k_is_of_those_who_were_asked_often_enough():
    many = {"a": [1.0] + 8 * [0.0], "b": 8 * [0.0]}
    few = {"a": 4 * [1.0], "b": [1.0, 1.0]}
    answers = answers_frame([Answers(name, None, "x", grades) for name, grades in (("many", many), ("few", few))])
    assert tries(answers) == [1, 4, 8]  # not 9, which one question alone allows
    found = [(each.method, k) for k in (1, 4, 8) for each in checkpoints(answers, all_metrics([]), [], k)]
    assert found == [("many", 1), ("few", 1), ("many", 4), ("many", 8)]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, str]:
    """The report of two methods, with two seeds each, token records, and an evaluation."""
    folder, runs = tmp_path_factory.mktemp("report"), []
    for seed, kernel in itertools.product((1, 2), ("none", None)):
        runs.append(a_run(folder / f"{kernel}-{seed}", kernel, seed, accuracy=0.5 + seed / 100, lr=3 if kernel else 1))
        files = files_in(runs[-1], kernel=kernel or "gaussian")
        write_record(files, 1, np.random.default_rng(seed), {0: [40, 50], 1: [30, 20]})
        asked = {"aime24": grades(9 + seed, 30), "amc23": grades(10 * seed, 40)}
        write_answers(folder / "evaluation" / f"{kernel}-{seed}", 200, runs[-1] / "global_step_200", **asked)
    write_answers(folder / "evaluation" / "base", None, aime24=grades(3, 30), amc23=grades(20, 40))
    code, printed = report(*runs, folder / "evaluation", "--out", folder / "out")
    assert code == 0 and "matplotlib" not in printed and "Warning" not in printed, printed
    return folder / "out", printed


def test_the_tables_of_scores_and_settings(written):
    out, printed = written
    rows = cells(out / "table2.csv")
    assert rows[0] == ["method", "step", "entropy", "AIME24", "AMC23", "average", "less base"]
    three, twenty = "10.0 (3 of 30) [3.5, 25.6]", "50.0 (20 of 40) [35.2, 64.8]"  # Wilson (1927)
    assert rows[1] == ["base", "", "", three, twenty, "30.0", ""]
    # Two seeds: 10 and 11 of 30, 10 and 20 of 40; the average is that of the benchmarks.
    assert rows[2][:3] == ["GRPO", "200", "0.1"] and rows[2][3].startswith("35.0 (21 of 60)")
    assert rows[2][4].startswith("37.5 (30 of 80)") and rows[2][5] == "36.2" and rows[2][6].startswith("+6.2 [")
    what, of_grpo, *_, seeds = cells(out / "comparison.csv")[1]
    assert (what, of_grpo, seeds) == ("Accuracy, AIME24, AMC23, step 200", "36.2%", "2")
    (asked,) = [sorted(row[1:]) for row in cells(out / "table4.csv") if row[0].endswith("rollout.temperature")]
    assert asked == ["0.6", "0.6", "1.0"]
    assert {row[0]: row[1:] for row in cells(out / "table5.csv")[1:]} == {
        "data.seed": ["1, 2", "1, 2"], "trainer.lr": ["3", "1"], "algorithm.cw_grpo.kernel": ["none", "-"]
    }  # fmt: skip
    assert "The runs differ in algorithm.cw_grpo.kernel, trainer.lr (Table 5)." in printed
    tokens = pd.DataFrame({"covariance": [-4.0, -1.0, 1.0, 2.0, 8.0], "count": [10, 90, 80, 19, 1]})
    one_by_one = table_1("x", tokens.loc[tokens.index.repeat(tokens["count"]), ["covariance"]])
    assert one_by_one.frame.to_numpy().tolist()[2] == ["20.00%", 2, 2.3, -1, -2.5]
    assert "100 tokens are positive, 100 negative" in one_by_one.notes[0]
    rows = {row[0]: row[1:] for row in table_1("x", tokens).frame.to_numpy().tolist()}
    assert all(math.isnan(value) for value in rows["0.01%"])  # less than a token
    assert rows["1.00%"] == [8, 8, -4, -4]  # one token of 100
    assert rows["20.00%"] == [2, 2.3, -3.67, -2.5]  # 8 + 19 x 2 over 20; between the edges at 10 and 100


def test_every_figure_is_written_twice_and_the_page_stands_alone(written):
    out, printed = written
    page = (out / "report.html").read_text()
    assert not re.search(r"<script|@import|(src|href)=\"(https?:|//)", page)
    assert page.index("<figure") < page.index("CW-GRPO less GRPO") < page.index("<details")
    for name in ("reward", "accuracy", "entropy", "grad-norm", "contributions"):
        ElementTree.parse(out / f"{name}.svg")
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF") and f'href="{name}.svg"' in page
    assert all((out / link).is_file() for link in re.findall(r'href="([^"#]+)"', page))
    assert f"{out / 'report.html'}" in printed and "GRPO" in printed.splitlines()[0]
    visible = re.sub(r"<(style|svg)\b.*?</\1>|<[^>]+>", " ", page, flags=re.S)
    assert max(len(sentence.split()) for sentence in re.findall(r"[A-Z][^.:*]*\.\s", visible)) <= 25


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


def test_names_are_shown_as_they_are_and_do_nothing(tmp_path):
    names = ["+cmd", "-2+3|x", "@SUM(1)", "<script>alert(1)</script>", "[a](http://b)", "$x$ & _y_ \"'", "a|b"]
    numbers = ["-6.8 points [-9.1, -4.5]", "-0.052 [-0.1, +0.01]", "+3.9 points", "-1e-5", "-", "-1.5", "=1+2"]
    table = Table("t", "<script>", pd.DataFrame({"name": names, "value": numbers}), ["[a](http://b)"])
    (tmp_path / "t.csv").write_text(table.csv())
    first, second = zip(*cells(tmp_path / "t.csv")[1:], strict=True)
    assert [*first] == [f"'{name}" if name[0] in "+-@" else name for name in names]
    assert [*second] == [*numbers[:-1], "'=1+2"]  # a spreadsheet runs no text, and a number stays one
    text = table.markdown()
    assert "<script" not in text and "](http" not in text and "\\$x\\$ &amp; \\_y\\_" in text
    assert all(line.replace("\\|", "").count("|") == 3 for line in text.splitlines()[2:11])
    assert r"\$x\$ \& \_y\_" in table.latex()
    runs = [f"{name}={a_run(tmp_path / str(number), steps=2)}" for number, name in enumerate(names)]
    assert report("--out", tmp_path / "out", "--", *runs)[0] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert [html.unescape(name) for name in re.findall(r"<th>(.*?)</th>", page)][1:8] == names
    texts = [text for file in (tmp_path / "out").glob("*.csv") for row in cells(file) for text in row]
    first_words = [text.split()[0] for text in texts if re.match("[-=+@].", text)]
    assert first_words and all(re.fullmatch(r"[-+][\d.]+", word) for word in first_words)  # numbers, no formulas


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
        (lambda path: [a_run(path / name, steps=12) for name in "ab"], "holds 2 runs"),
    ],
)  # fmt: skip
def test_a_bad_folder_ends_in_one_sentence(make, message, tmp_path):
    make(tmp_path / "run")
    code, printed = report(tmp_path / "run", "--out", tmp_path / "out")
    assert code == 2 and message in printed and "Traceback" not in printed
    assert printed.count("Error:") == 1 and not (tmp_path / "out").exists()


def test_what_cannot_be_shown_is_said_beside_the_rest(tmp_path):
    folders = ("a", "b", "lr=2")  # the last is no seed of CW-GRPO, and gets its own name
    for folder, lr, seed in zip(folders, (1, 1, 2), (1, 2, 3), strict=True):
        a_run(tmp_path / folder, None, seed, lr=lr, steps=12)
    write_record(files_in(tmp_path / "lr=2"), 1, np.random.default_rng(1), {0: [40, 50]})
    (tmp_path / "a" / "tokens").mkdir()
    pq.write_table(pa.table({"group": ["x"], "text": [1]}), tmp_path / "a" / "tokens" / "step_000001.parquet")
    code, printed = report(*(tmp_path / folder for folder in folders), "--out", tmp_path / "out")
    assert code == 0 and "CW-GRPO: no tokens;" in printed and "step_000001.parquet cannot be read" in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert "cannot be read as a token record" in page and page.count("CW-GRPO: 2 runs.") == 1
    assert f"CW-GRPO, {tmp_path.name}/lr=2 less CW-GRPO" in printed
    assert f"Tokens of CW-GRPO, {tmp_path.name}/lr=2" in (tmp_path / "out" / "tokens-1.html").read_text()
    for arguments, message in [
        ((tmp_path / "a", tmp_path / "a"), "is given twice"),
        (("=x",), "has no name before"),
        (("x=",), "has no folder after the ="),
        (("x" * 300,), "xxx does not exist"),
        (("x=" + "y" * 300,), "yyy does not exist"),
        ((tmp_path / "b", "--out", "/proc/x"), "/proc/x cannot be written"),
    ]:
        code, printed = report("--out", tmp_path / "out", *arguments)
        assert code == 2 and message in printed and "Traceback" not in printed


def test_a_report_of_nothing_is_an_error(tmp_path):
    """A run of TRL whose metrics were not kept leaves its arguments and token records."""
    write(tmp_path / "run" / "training_args.json", '{"cw_kernel": "none"}')
    write_record(files_in(tmp_path / "run", kernel="none"), 1, np.random.default_rng(1), {0: [40, 50]})
    code, printed = report(tmp_path / "run", "--out", tmp_path / "out")
    assert code == 2 and "call trainer.save_state()" in printed and not (tmp_path / "out").exists()
    code, printed = report(tmp_path / "run", a_run(tmp_path / "whole"), "--out", tmp_path / "out")
    assert code == 0 and f"{tmp_path / 'run'} holds no metrics" in printed
