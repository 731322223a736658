"""What a run has logged: known logs in, exact series out."""

import json
import math
from pathlib import Path

import pytest
from synthetic_runs import ACCURACY, ENTROPY, NORM, REWARD, write, write_metrics, write_state

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.reports.runs import all_metrics, read_run


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
def test_loggers_of_verl_give_the_same_finite_numbers(write_log, tmp_path):
    """test_trl_runs.py reads TRL's."""
    write_log(tmp_path / "run", {1: {ENTROPY: 0.5, "x": math.nan}, 2: {ENTROPY: 0.25, "x": -math.inf}, 3: {"x": 1.0}})
    run = read_run(tmp_path / "run")
    assert run.series(ENTROPY).to_dict() == {1: 0.5, 2: 0.25} and run.series("x").to_dict() == {3: 1.0}
    assert run.metrics["x"].to_dict() == {1: math.inf, 2: math.inf, 3: 1.0}  # logged, and not finite


def test_no_step_of_a_long_run_is_left_out(tmp_path):
    """TensorBoard's reader keeps 10,000 numbers, unless it is told otherwise."""
    as_tensorboard(tmp_path, {step: {"x": 1.0} for step in range(10_001)})
    assert len(read_run(tmp_path).series("x")) == 10_001


@pytest.mark.parametrize(
    "names",
    [
        "metrics.9 metrics.10 metrics",
        "metrics-20261031-235959 metrics-20261101-000001 metrics",
        "tensorboard",
        "one file",
    ],
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
        if names == "tensorboard":
            as_tensorboard(tmp_path, steps)
        elif names == "one file":
            lines = (write_metrics(tmp_path / "start", steps) / "metrics.jsonl").read_text()
            with (tmp_path / "metrics.jsonl").open("a") as log:
                log.write(lines)
            (tmp_path / "start" / "metrics.jsonl").unlink()
        else:
            write_metrics(tmp_path, steps, f"{names.split()[place]}.jsonl")
    write(tmp_path / "7.jsonl", '{"step":12,"data":{"x')
    (tmp_path / "8.jsonl").mkdir()
    write(tmp_path / ".metrics.jsonl.1.part", "the process was killed")
    write(tmp_path / "5.jsonl", '\n{"input": "q", "gts": "1", "score": 1.0}\n')
    write(tmp_path / "settings.json", '{"editor.tabSize": 4}')
    run = read_run(tmp_path)
    assert run.series("x").to_dict() == pytest.approx({1: 1.1, 2: 2.1, 10: 10.1, 11: 11.2})
    assert run.validation("acc")["val-core/x"].dropna().to_dict() == pytest.approx({0: 0.26, 10: 0.53})
    assert run.series("lost").empty


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        ("t0.6 t0.9", 2),
        ("qwen2 qwen2.5", 2),
        ("llama3.2.1 llama3.2", 1),  # as the doctor advises to rename llama3.2.jsonl before it is resumed
        ("metrics.1 metrics.2", 1),  # the third start has written nothing
    ],
)
def test_a_number_in_a_name_need_not_be_that_of_a_start(names, runs, tmp_path):
    for step, name in enumerate(names.split(), 1):
        write_metrics(tmp_path, {step: {"x": step}}, f"{name}.jsonl")
    if runs == 1:
        assert list(read_run(tmp_path).series("x")) == [*range(1, len(names.split()) + 1)]
    else:
        with pytest.raises(DataError, match=f"holds {runs} runs"):
            read_run(tmp_path)


def test_of_trls_states_the_last_is_read(tmp_path):
    """Each checkpoint has one, and the folder too, after save_state()."""

    def write_log(folder: Path, last: int, **at_the_end: float) -> None:
        write_state(folder, [*({"step": s, "reward": s} for s in range(1, last + 1)), {"step": last, **at_the_end}])

    for folder, last in (("", 1), ("checkpoint-2", 2), ("checkpoint-10", 10)):
        write_log(tmp_path / folder, last)
    assert read_run(tmp_path).series(REWARD).index.tolist() == [*range(1, 11)]
    write_log(tmp_path, 10, train_loss=0.5)
    assert read_run(tmp_path).series("train_loss").to_dict() == {10: 0.5}


@pytest.mark.parametrize(
    "names",
    [  # in the logs of TRL and ms-swift, of OpenRLHF, and of SkyRL
        "reward entropy grad_norm learning_rate kl completions/mean_length",
        "train/reward train/entropy_loss train/actor_grad_norm train/actor_lr train/kl train/response_length",
        "reward/avg_raw_reward policy/policy_entropy policy/grad_norm policy/policy_lr policy/policy_kl "
        "generate/avg_num_tokens",
    ],
)
def test_metrics_of_other_hosts_have_verls_names(names, tmp_path):
    as_tensorboard(tmp_path, {1: {name: float(value) for value, name in enumerate(names.split())}})
    found = {name: values[1] for name, values in read_run(tmp_path).metrics.items()}
    of_verl = [REWARD, ENTROPY, NORM, "actor/lr", "actor/kl_loss", "response_length/mean"]
    assert found == {name: value for value, name in enumerate(of_verl)}


def test_accuracy_goes_on_with_another_number_of_answers(tmp_path):
    """A start that goes on validates the checkpoint once more, here that of step 3."""
    first, second = "val-core/x/acc/mean@1", "val-core/x/acc/mean@4"
    write_metrics(tmp_path, {1: {first: 0.1}, 2: {"x": 1.0}, 3: {first: 0.2}}, "metrics.1.jsonl")
    run = read_run(write_metrics(tmp_path, {3: {second: 0.9}, 4: {second: 0.3}}))
    assert run.validation("acc")["val-core/x"].dropna().to_dict() == {1: 0.1, 3: 0.9, 4: 0.3}
    for seed, start in ((1, "2026-10-31/23-59-59"), (2, "2026-11-01/00-00-01")):
        write(tmp_path / "outputs" / start / ".hydra" / "config.yaml", f"seed: {seed}")
    assert read_run(tmp_path).seed == 2  # that of the later start


def test_files_may_have_been_moved(tmp_path):
    """To another disk, with a link in their place, which may also lead back; through Windows; or through a program
    that knows only real numbers, or texts."""
    first, second = ('{"step": 1, "data": {"x": 0.5}}', '{"step": 2.0, "data": {"x": "0.75", "y": "text", "z": true}}')
    write(tmp_path / "disk" / "metrics.jsonl", f"\ufeff{first}\r\n\r\n{second}\r\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "back").symlink_to(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.series("x").to_dict() == {1: 0.5, 2: 0.75} and run.series("z").to_dict() == {2: 1.0}
    write(tmp_path / "trl" / "trainer_state.json", '\ufeff{"log_history": [{"step": 1, "reward": 0.5}]}')
    assert read_run(tmp_path / "trl").series(REWARD).to_dict() == {1: 0.5}


def test_a_metric_of_ones_own_is_kept_and_those_of_the_loss_are_called_as_the_estimators(tmp_path):
    """verl puts actor/ before what a policy loss returns."""
    of_loss = {"actor/cw_grpo/weight_mean": 0.9, "actor/pg_loss": 0.1}
    run = read_run(write_metrics(tmp_path / "one", {1: {"accuracy": 0.75, ACCURACY: 0.25} | of_loss}))
    assert list(run.metrics) == ["accuracy", ACCURACY, "cw_grpo/weight_mean", "actor/pg_loss"]
    not_validated = read_run(write_metrics(tmp_path / "other", {1: {"x": 1.0}}))
    values = all_metrics([run, not_validated]).set_index("metric").value
    assert values["accuracy"] == 0.75 and values["val-core/accuracy"] == values[ACCURACY] == 0.25


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("GRPO", {"algorithm": {"adv_estimator": "cw_grpo", "cw_grpo": {"weights": "none"}}}),
        ("GRPO", {"algorithm": {"adv_estimator": "grpo"}}),
        ("GRPO", {"cw_weights": "none", "cw_scope": "group"}),
        ("CW-GRPO", {"algorithm": {"adv_estimator": "cw_grpo"}}),
        ("CW-GRPO, batch", {"cw_weights": "gaussian", "cw_scope": "batch"}),
        ("CW-GRPO, batch", {"algorithm": {"adv_estimator": "cw_grpo", "cw_grpo": {"scope": "batch"}}}),
        ("GRPO with my:own weights", {"algorithm": {"adv_estimator": "cw_grpo", "cw_grpo": {"weights": "my:own"}}}),
        ("GRPO with ar weights", {"cw_weights": "ar", "cw_scope": "group", "cw_settings": {"alpha": 0.2}}),
        ("GRPO with ar weights, alpha=0.3", {"cw_weights": "ar", "cw_scope": "group", "cw_settings": {"alpha": 0.3}}),
        ("GRPO with ar weights, alpha=0.3, advantages of rloo",
         {"algorithm": {"adv_estimator": "cw_grpo",
                        "cw_grpo": {"weights": "ar", "estimator": "rloo", "settings": {"alpha": 0.3}}}}),
        ("GRPO with steer weights, batch", {"cw_weights": "steer", "cw_scope": "batch"}),
        ("rloo", {"algorithm": {"adv_estimator": "rloo"}}),
        ("CW-GRPO in the loss", {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "cw_grpo"}}}}),
        ("clip_cov", {"algorithm": {"adv_estimator": "grpo"},
                      "actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "clip_cov"}}}}),
    ],
)  # fmt: skip
def test_methods_are_called_by_what_they_are(name, config, tmp_path):
    write(tmp_path / ("training_args.json" if "cw_scope" in config else ".hydra/config.yaml"), json.dumps(config))
    assert read_run(tmp_path).name == name and read_run(f"mine={tmp_path}").name == "mine"
    assert read_run(f"mine={tmp_path}").is_grpo == (name == "GRPO")
    assert read_run(f"GRPO={tmp_path}").is_grpo == ("CW-GRPO" not in name)  # also that of another loss or estimator
