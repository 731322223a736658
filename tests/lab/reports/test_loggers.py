"""Runs that Weights & Biases, trackio and tables hold, each written here by the real logger."""

import math
import sys

import pandas as pd
import pytest
from synthetic_runs import ACCURACY, ENTROPY, REWARD, write

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.reports.runs import read_run

CONFIG = {"algorithm": {"adv_estimator": "cw_grpo", "cw_grpo": {"weights": "none"}}, "data": {"seed": 0}}
STEPS = {1: {REWARD: 0.25, ENTROPY: float("nan")}, 2: {REWARD: 0.5, ENTROPY: 0.5, ACCURACY: 0.75}}


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return pytest.importorskip("wandb", reason="needs wandb")


def log(wandb, steps: dict[int, dict[str, float]], config: dict = CONFIG, **settings: object) -> None:
    """As verl does it (verl/utils/tracking.py)."""
    run = wandb.init(project="project", config=config, **settings)
    for step, metrics in steps.items():
        wandb.log(data=metrics, step=step)
    run.finish()
    wandb.teardown()  # its own process writes the file, and finish does not wait for that


def test_an_offline_run_of_weights_and_biases_is_read(wandb, tmp_path):
    """With the method and the seed of its configuration; the longest texts and names cross a block of the file."""
    log(wandb, {0: {"long": "x" * 70_000}} | STEPS)
    run = read_run(tmp_path / "wandb")
    assert run.series(REWARD).to_dict() == {1: 0.25, 2: 0.5} and run.series(ENTROPY).to_dict() == {2: 0.5}
    assert run.series(ACCURACY).to_dict() == {2: 0.75}
    assert run.metrics.loc[1, ENTROPY] == float("inf")  # logged, and not finite
    assert (run.name, run.seed) == ("GRPO", 0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("offline-run-20261127_235959-one", "offline-run-20261128_000000-one"),
        ("offline-run-20261127_235959-one", "offline-run-20261127_235959-one-1"),  # as W&B calls it in the same second
        ("run-20261127_235959-one", "offline-run-20261128_000000-one"),
        ("offline-run-20261127_235959-one", "run-20261128_000000-one"),
    ],
)
def test_a_resumed_run_of_weights_and_biases_is_one_and_two_runs_are_not(first, second, wandb, tmp_path):
    starts = {
        first: {1: {REWARD: 1.0}, 2: {REWARD: 2.0}, 3: {REWARD: 3.0}},
        second: {3: {REWARD: 3.5}, 4: {REWARD: 4.5}},
    }
    for seed, (name, steps) in enumerate(starts.items(), 1):
        log(wandb, steps, {"seed": seed}, id="one", resume="allow", dir=tmp_path / "new")
        (folder,) = (tmp_path / "new" / "wandb").glob("offline-run-*-one")
        (tmp_path / "wandb").mkdir(exist_ok=True)
        folder.rename(tmp_path / "wandb" / name)
    for link in ("latest-run", "a", "b", "c"):  # the first is its own; a file system may list any of them first
        (tmp_path / "wandb" / link).symlink_to(tmp_path / "wandb" / second)
    run = read_run(tmp_path / "wandb")
    assert run.series(REWARD).to_dict() == {1: 1.0, 2: 2.0, 3: 3.5, 4: 4.5} and run.seed == 2  # that of the later start
    log(wandb, STEPS, id="another")
    with pytest.raises(DataError, match=r"holds 2 runs .*give the folder of each as NAME=FOLDER"):
        read_run(tmp_path / "wandb")


def test_a_run_of_weights_and_biases_that_is_being_written_is_read_as_far_as_it_goes(wandb, tmp_path):
    log(wandb, {step: {REWARD: float(step)} for step in range(1, 30)})
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    whole, lengths = file.read_bytes(), []
    for end in range(len(whole), 7, -len(whole) // 40):
        file.write_bytes(whole[:end])
        steps = list(read_run(file).series(REWARD).index)
        assert steps == list(range(1, len(steps) + 1))
        lengths.append(len(steps))
    assert lengths[0] == 29 and lengths == sorted(lengths, reverse=True) and 0 < lengths[len(lengths) // 2] < 29


def logged_by_transformers(callback, folder) -> None:
    """As TRL's trainer does it, which logs twice in a step with an evaluation."""
    from transformers import TrainerControl, TrainerState, TrainingArguments

    args = TrainingArguments(str(folder / "out"), report_to=[], seed=3, project="project", run_name="run")
    state, control = TrainerState(is_world_process_zero=True, max_steps=2), TrainerControl()
    callback.setup(args, state, None)
    for step, logs in [(5, {"reward": 0.25}), (10, {"reward": 0.5}), (10, {"eval_reward": 0.75, "eval_runtime": 1.0})]:
        state.global_step = step
        callback.on_log(args, state, control, logs=logs)


def of_trl(run) -> None:
    assert run.series(REWARD).to_dict() == {5: 0.25, 10: 0.5}
    assert run.series("val-core/eval/score/mean@n").to_dict() == {10: 0.75}
    assert run.seed == 3


def test_steps_of_transformers_in_weights_and_biases_are_those_of_training(wandb, tmp_path):
    from transformers.integrations import WandbCallback

    logged_by_transformers(WandbCallback(), tmp_path)
    wandb.finish()
    wandb.teardown()
    of_trl(read_run(tmp_path / "wandb"))


def test_steps_of_openrlhf_in_weights_and_biases_are_those_of_training(wandb, tmp_path):
    """Its WandbLogger gives no step, so that of Weights & Biases counts evaluations, too. It has two datasources."""
    run = wandb.init(project="project")
    for step in (1, 2, 3):
        wandb.log({"train/reward": step / 4, "train/global_step": step})
        if step == 2:
            wandb.log({"eval/eval_aime_pass1": 0.25, "eval/eval_math_pass1": 0.5, "eval/global_step": step})
    run.finish()
    wandb.teardown()
    exported = "_step,train/global_step,train/reward,eval/global_step,eval/eval_aime_pass1,eval/eval_math_pass1"
    write(tmp_path / "run.csv", f"{exported}\n0,1,0.25,,,\n1,2,0.5,,,\n2,,,2,0.25,0.5\n3,3,0.75,,,\n")
    for read in (read_run(tmp_path / "wandb"), read_run(tmp_path / "run.csv")):
        assert read.series(REWARD).to_dict() == {1: 0.25, 2: 0.5, 3: 0.75}
        validation = read.validation("score").loc[[2]].to_dict()
        assert validation == {"val-core/aime": {2: 0.25}, "val-core/math": {2: 0.5}}


def test_a_run_of_trackio_is_read(packages, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.syspath_prepend(str(packages("trackio==0.43.0", "gradio-client==2.7.2", "brotli==1.2.1")))
    trackio = pytest.importorskip("trackio")
    from transformers.integrations import TrackioCallback

    logged_by_transformers(TrackioCallback(), tmp_path)
    trackio.finish()
    database = tmp_path / "trackio" / "project.db"
    of_trl(read_run(database))
    for seed, values in ((0, {7: 1.0, 8: math.nan, 9: 3.0}), (1, {8: -math.inf})):  # resumed from step 7
        trackio.init(project="project", name="out/other", config={"data": {"seed": seed}})
        for step, value in values.items():
            trackio.log({REWARD: value}, step=step)
        trackio.finish()
    of_trl(read_run(database / "run"))
    other = read_run(f"X={database / 'out/other'}")
    assert other.metrics[REWARD].to_dict() == {7: 1.0, 8: math.inf} and other.seed == 1  # of the later start
    for path in (database, database / "neither"):
        with pytest.raises(DataError, match=r"is not one run of trackio; give one of the 2 that it has, such as .*run"):
            read_run(path)
    sys.modules.pop("trackio")


@pytest.mark.parametrize("step", ["step", "_step", "Step", "train/global_step"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_with_a_column_of_steps_is_a_run(step, suffix, tmp_path):
    table = pd.DataFrame(
        {step: [1, 2, 2], REWARD: [0.25, None, 0.5], "text": ["a", "b", "c"], ACCURACY: [None, 0.75, None]}
    ).assign(broken=["0.5", "NaN", None], **{" done": [False, True, True]})
    file = tmp_path / f"run.{suffix}"
    table.to_csv(file, index=False) if suffix == "csv" else table.to_parquet(file, index=False)
    run = read_run(file)
    assert run.series(REWARD).to_dict() == {1: 0.25, 2: 0.5} and run.series(ACCURACY).to_dict() == {2: 0.75}
    assert run.metrics["broken"].to_dict() == {1: 0.5, 2: math.inf} and run.series("done").to_dict() == {1: 0.0, 2: 1.0}
    assert "text" not in run.metrics


def test_a_chart_that_weights_and_biases_exports_is_a_run(tmp_path):
    """Its columns have the names of the run and of the metric, and the least and the greatest of several."""
    columns = [f"a - b - {REWARD}{end}" for end in ("", "__MIN", "__MAX")]
    chart = pd.DataFrame([[1, 0.25, 0.2, 0.3], [2, 0.5, 0.4, 0.6]], columns=["Step", *columns])
    chart.to_csv(tmp_path / "chart.csv", index=False)
    assert read_run(tmp_path / "chart.csv").metrics.to_dict() == {REWARD: {1: 0.25, 2: 0.5}}
    chart.assign(**{f"other - {REWARD}": 1.0}).to_csv(tmp_path / "chart.csv", index=False)
    with pytest.raises(DataError, match=r"chart.csv holds 2 runs \(a - b, other\); export each by itself"):
        read_run(tmp_path / "chart.csv")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x.csv", r"has no column of steps, only epoch, loss \.\.\.; call one of them step"),
        ("x.parquet", "cannot be read as a table"),
        ("x.db", "is not a project of trackio"),
        ("run-x.wandb", "is not a file of Weights & Biases"),
    ],
)
def test_a_file_that_is_no_run_is_said(wandb, tmp_path, name, said):
    (tmp_path / name).write_text("epoch,loss\n1,2\n")
    with pytest.raises(DataError, match=said):
        read_run(tmp_path / name)
