"""cw-grpo doctor: each fault is planted, and seen; a run without faults gets no finding."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig, OmegaConf
from typer.testing import CliRunner

from cw_plugin import doctor
from cw_plugin.cli import app
from cw_plugin.doctor import data, environment
from cw_plugin.errors import DataError, OptionsError
from cw_plugin.verl_integration.config import compose

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "cpu" / "model"
A = "actor_rollout_ref"
SETTINGS = [check for check in doctor.CHECKS if check.__module__ != environment.__name__]  # the others start processes


def write_rows(path: Path, ground_truths: list[Any], prompt: Any = None, columns: Any = ()) -> Path:
    prompt = prompt or [{"role": "user", "content": "What is 2+2?"}]
    rows = [
        {"data_source": "my/data", "prompt": prompt, "reward_model": {"style": "rule", "ground_truth": ground_truth}}
        for ground_truth in ground_truths
    ]
    rows = [{dict(columns).get(name, name): value for name, value in row.items()} for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> list[str]:
    file = write_rows(
        tmp_path_factory.mktemp("doctor") / "train.parquet", ["4", "5"]
    )  # numbers start no grading process
    return [
        "algorithm.adv_estimator=cw_grpo",
        f"data.train_files={file}",
        f"data.val_files={file}",
        "data.train_batch_size=8",
        "data.max_prompt_length=128",
        "data.max_response_length=64",
        f"{A}.model.path={MODEL}",
        f"{A}.actor.ppo_mini_batch_size=8",
        f"{A}.actor.ppo_micro_batch_size_per_gpu=4",
        f"{A}.actor.loss_agg_mode=seq-mean-token-mean",
        f"{A}.rollout.name=vllm",
        f"{A}.rollout.n=4",
        f"{A}.rollout.log_prob_micro_batch_size_per_gpu=4",
        "trainer.n_gpus_per_node=2",
        "trainer.logger=[console,file]",
        "reward.custom_reward_function.path=pkg://cw_plugin.rewards",
        "reward.custom_reward_function.name=compute_score",
    ]


@pytest.fixture(scope="module")
def composed(good) -> DictConfig:
    return compose(good)


def changed(config: DictConfig, *overrides: str) -> DictConfig:
    """A copy with other values, without composing anew."""
    config = config.copy()
    OmegaConf.set_struct(config, False)
    for override in overrides:
        key, _, value = override.partition("=")
        OmegaConf.update(config, key, OmegaConf.from_dotlist([f"value={value}"]).value, force_add=True)
    return config


def findings(config: DictConfig, checks=SETTINGS) -> list[tuple[str, doctor.Finding]]:
    found, failed = doctor.examine(config, checks)
    assert failed == {}
    return found


def test_a_run_without_faults_gets_no_finding(composed):
    assert findings(composed) == []


LOSS = f"{A}.actor.policy_loss.loss_mode"
REWARD = "reward.custom_reward_function"


@pytest.mark.parametrize(
    ("fault", "check", "what", "fix", "fatal"),
    [
        ([f"{LOSS}=cw_grpo"], "method", "weigh every token twice", "loss_mode=vanilla", True),
        (["algorithm.adv_estimator=grpo"], "method", "this run is not CW-GRPO", "adv_estimator=cw_grpo", False),
        (["algorithm.adv_estimator=cw_gpro"], "method", "verl does not know", "algorithm.adv_estimator=cw_grpo", True),
        ([f"{LOSS}=ppo"], "method", "verl does not know", "loss_mode=vanilla", True),
        (["algorithm.cw_grpo.scope=prompt"], "method", "scope", "batch", True),
        (["algorithm.use_kl_in_reward='no'"], "switches", "which verl reads as True", "use_kl_in_reward=False", True),
        (["algorithm.use_kl_in_reward=Ture"], "switches", "which verl reads as True", "use_kl_in_reward=True", True),
        ([f"{A}.rollout.n=1"], "scope", "one response", f"{A}.rollout.n=12", True),
        (["algorithm.cw_grpo.scope=batch"], "scope", "all prompts share", "scope=group", False),
        (
            ["algorithm.adv_estimator=grpo", f"{LOSS}=cw_grpo", f"{A}.actor.ppo_micro_batch_size_per_gpu=1"],
            "scope",
            "a micro-batch of one response",
            "loss_mode=vanilla",
            True,
        ),
        (["custom_reward_function.path=my.py"], "ignored reward", "top level", f"{REWARD}.path=my.py", True),
        (["data.train_batch_size=12"], "batch sizes", "up to 16 prompts", "data.train_batch_size=16", False),
        ([f"{A}.actor.loss_agg_mode=token-mean"], "aggregation", "token-mean", "seq-mean-token-mean", False),
        (["trainer.logger=[console,wandb]"], "loggers", "will not find", "[console,wandb,file]", False),
        (["trainer.logger=console"], "loggers", "will not find", "trainer.logger=[console,file]", False),
        ([f"{REWARD}.path=null"], "reward function", "is not set", "path=pkg://cw_plugin.rewards", False),
        ([f"{REWARD}.path=pkg://no_module"], "reward function", "cannot be loaded", 'pip install ".[data]"', True),
        ([f"{A}.actor.ppo_micro_batch_size_per_gpu=null"], "validation", "ppo_micro_batch_size", "verl names", True),
        ([f"{A}.rollout.max_model_len=100"], "lengths", "max_model_len=100: vLLM cuts", "max_model_len=192", True),
        (["data.max_response_length=5000"], "lengths", "2048 positions: vLLM cuts", "data.max_response_length=", True),
        ([f"{A}.model.path=no-such-model"], "lengths", "no-such-model cannot be read", "model.path", True),
        ([f"{A}.model.path=/no/such"], "model", "/no/such does not exist", "model.path=<a model's folder", True),
        ([f"{A}.model.path={ROOT}/tests"], "model", "has no config.json", "model.path=<a model's folder", True),
        (["data.train_files=/no/such.parquet"], "files", "such.parquet does not exist", "cw-grpo prepare", True),
    ],
)
def test_a_planted_fault_is_named(composed, monkeypatch, fault, check, what, fix, fatal):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (function,) = [function for function in doctor.CHECKS if function.__name__.replace("_", " ") == check]
    (finding,) = function(changed(composed, *fault))
    assert what in finding.what and fix in finding.fix
    assert finding.fatal is fatal


@pytest.mark.parametrize(
    "unusual",
    [
        ["data.val_files=hdfs://host/test.parquet", f"{A}.model.path=hdfs://host/model"],  # verl copies them
        [f"{A}.model.path=Qwen/Qwen2.5-Math-7B"],
        ["trainer.logger=[tensorboard]"],
        [f"{A}.rollout.n=1", "algorithm.cw_grpo.scope=batch"],
    ],
)
def test_what_verl_accepts_is_no_fault(composed, unusual):
    checks = [check for check in SETTINGS if check is not data.lengths]  # it would ask the hub
    assert not [finding for _, finding in findings(changed(composed, *unusual), checks) if finding.fatal]


def test_the_fix_of_lengths_works(composed):
    config = changed(composed, "data.max_prompt_length=3000", "data.max_response_length=3000")
    config = changed(config, f"{A}.rollout.max_model_len=200")
    found = list(data.lengths(config))
    assert len(found) == 2  # the model has 2048 positions
    assert list(data.lengths(changed(config, *(fix for finding in found for fix in finding.fix.split())))) == []


@pytest.mark.parametrize(
    ("ground_truths", "rows"),
    [
        (["4", None, "", " \n"], "row 1 (None), 2 (''), 3 ("),
        ([None] * 8, "row 0 (None), 1 (None), 2 (None), 3 (None), 4 (None), and 3 more"),
        ([["4"], ["5"]], "row 0 (['4']), 1 (['5'])"),
        ([1.5, float("nan"), 2.0], "row 1 (nan)"),
        ([True], "row 0 (True)"),
        (["4", r"2007 + \frac\pi 2", "5", r"2007 + \frac\pi 2"], r"row 1 ('2007 + \\frac\\pi 2'), 3 ("),
    ],
)
def test_rows_that_cannot_be_graded_are_refused(composed, tmp_path, ground_truths, rows):
    file = write_rows(tmp_path / "own.parquet", ground_truths)
    config = changed(composed, f"data.train_files={file}")
    (finding,) = data.ground_truths(config)
    assert finding.fatal and f"data.train_files: {file}, {rows}" in finding.what
    with pytest.raises(DataError, match="cannot be graded"):
        data.require_ground_truths(config)
    # The reward of somebody else may grade them; and what is only unreadable may be in a benchmark.
    assert list(data.ground_truths(changed(config, f"{REWARD}.path=my.py"))) == []
    (finding,) = data.ground_truths(changed(composed, f"data.val_files={file}"))
    assert finding.fatal is ("2007" not in rows)


def test_numbers_are_ground_truths(composed, tmp_path):
    file = write_rows(tmp_path / "numbers.parquet", [1, 2, -3])
    assert list(data.ground_truths(changed(composed, f"data.train_files=[{file}]"))) == []


def test_main_ppo_is_refused_before_ray(good, tmp_path):
    """verl's own command, without the doctor."""
    file = write_rows(tmp_path / "own.parquet", ["4", None])
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *good, f"data.train_files={file}"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode != 0
    assert f"{file}, row 1 (None): ground_truth cannot be graded" in result.stderr
    assert "ray init kwargs" not in result.stdout + result.stderr  # what verl prints before ray.init


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"not a parquet file", "is no parquet file"),
        (b"", "is no parquet file"),
        ({"reward_model": "answer"}, "lacks the column(s) reward_model; it has data_source, prompt, answer"),
        ({"prompt": "question"}, "lacks the column(s) prompt"),
        ("What is 2+2?", "holds string, not lists of messages"),
        ([], "has no rows"),
    ],
)
def test_a_file_that_verl_cannot_use(composed, tmp_path, content, what):
    file = tmp_path / "train.parquet"
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif isinstance(content, dict):
        write_rows(file, ["4"], columns=content)
    elif isinstance(content, str):
        write_rows(file, ["4"], prompt=content)
    else:
        pq.write_table(pq.read_table(write_rows(file, ["4"])).slice(1), file)
    config = changed(composed, f"data.train_files={file}")
    (finding,) = [finding for name, finding in findings(config, doctor.QUICK) if name == "files"]
    assert what in finding.what and str(file) in finding.what
    if content == {"prompt": "question"}:
        assert list(data.files(changed(config, "data.prompt_key=question", f"data.val_files={file}"))) == []


def test_a_check_that_fails_itself_is_not_counted_as_nothing_wrong(good, composed, monkeypatch):
    found, failed = doctor.examine(changed(composed, "data.train_batch_size=8k"), doctor.CHECKS[:9])
    assert found == [] and list(failed) == ["batch sizes"] and "TypeError" in failed["batch sizes"]

    def broken(config):
        raise ValueError("no such thing")

    monkeypatch.setattr(doctor, "CHECKS", (broken,))
    monkeypatch.setattr(doctor, "QUICK", (broken,))
    result = CliRunner().invoke(app, ["doctor", "--no-ray", *good])
    assert result.exit_code == 1
    assert "Not checked [broken] the check failed itself: ValueError: no such thing" in result.stdout
    assert result.stdout.endswith("0 wrong, 0 to note, 1 not checked\n")
    result = CliRunner().invoke(app, ["doctor", "--no-ray", "--json", *good])
    assert result.exit_code == 1 and json.loads(result.stdout)[0]["failed"] == "ValueError: no such thing"
    result = CliRunner().invoke(app, ["doctor", "--quick", *good])  # which must not stop what verl may well train
    assert result.exit_code == 0 and "Not checked [broken]" in result.stderr


def test_the_command(good, monkeypatch):
    monkeypatch.setattr(doctor, "CHECKS", doctor.QUICK)
    result = CliRunner().invoke(app, ["doctor", "--no-ray", *good, f"{A}.rollout.n=1"])
    first, wrong, fix, last = result.stdout.splitlines()
    assert result.exit_code == 1
    assert first.startswith("verl's V1 trainer; cw_plugin hooks PPOTrainer.__init__, compute_advantage_for")
    assert wrong.startswith("Wrong [scope] rollout.n=1") and fix.startswith("      fix: ")
    assert last == "1 wrong, 0 to note, 0 not checked"
    result = CliRunner().invoke(app, ["doctor", "--no-ray", "--json", *good, "algorithm.adv_estimator=grpo"])
    (finding,) = json.loads(result.stdout)
    assert result.exit_code == 0 and set(finding) == {"check", "what", "fix", "fatal"}


@pytest.mark.parametrize(
    ("mistyped", "said"),
    [
        (f"{A}.rollout.m=8", f"verl has no setting {A}.rollout.m; did you mean {A}.rollout.n?"),
        ("no.such.key=1", "verl has no setting no.such.key; check the spelling"),
        ("+algorithm.cw_grpo.scpoe=batch", "scpoe"),
        ("+algorithm.cw_grpo=batch", "algorithm.cw_grpo='batch'"),
        ("model_engine=megatorn", "Could not find 'model_engine/megatorn'"),
        ("algorithm.adv_estimator=grpo,gae", "Ambiguous value"),
        ("--quik", "'--quik' is not a hydra override"),
        ("data.train_files=/no/such.parquet", "data.train_files: /no/such.parquet does not exist; fix: cw-grpo prep"),
    ],
)
def test_whatever_is_mistyped_ends_in_one_sentence(good, mistyped, said):
    result = CliRunner().invoke(app, ["doctor", "--quick", *good, mistyped])
    assert result.exit_code == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ") and said in line


def test_the_quick_check_loads_neither_torch_nor_verl_and_is_silent(good):
    code = (
        "import sys\n"
        "from cw_plugin.doctor import doctor\n"
        "assert doctor(sys.argv[1:], quick=True) == 0\n"
        "assert not {'torch', 'verl', 'ray', 'pandas', 'sympy'} & sys.modules.keys()\n"
    )
    command = [sys.executable, "-c", code, *good, "data.train_batch_size=9"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_fresh_interpreter_finds_the_plugin_unless_it_is_told_not_to(composed, monkeypatch):
    assert list(environment.fresh_interpreter(composed)) == []
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")  # the entry point is not looked at
    (finding,) = environment.fresh_interpreter(composed)
    assert "finds no cw_grpo" in finding.what and "VERL_USE_EXTERNAL_PLUGINS" in finding.fix


def test_a_ray_cluster_that_does_not_answer(composed, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert list(environment.ray_cluster(composed)) == []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        note = tmp_path / "ray" / "ray_current_cluster"  # which only `ray stop` removes
        note.parent.mkdir()
        note.write_text(address)
        assert list(environment.ray_cluster(composed)) == []
    (finding,) = environment.ray_cluster(composed)
    assert finding.fatal and f"{note} names a Ray cluster, {address}, and nobody answers" in finding.what
    assert list(environment.ray_workers(composed)) == []  # said above; Ray itself waits for minutes
    assert list(environment.ray_cluster(changed(composed, "ray_kwargs.ray_init.address=local"))) == []
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    (finding,) = environment.ray_cluster(composed)
    assert "RAY_ADDRESS names a Ray cluster, 127.0.0.1:9, and nobody answers there" in finding.what


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Path:
    """A copy of the scripts whose environment is this one: there is nothing to install."""
    root = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", root / "examples", ignore=shutil.ignore_patterns("study"))
    (root / "examples" / "cpu" / "install.sh").write_text("")
    (root / "examples" / "cpu" / "data.sh").write_text("")
    return root / "examples"


@pytest.mark.parametrize("script", ["quickstart_cpu.sh", "run_qwen2_5_math_7b_megatron.sh"])
def test_a_script_is_asked_for_its_own_configuration_and_starts_nothing_that_is_refused(script, examples):
    config = compose([str(examples / script), "trainer.project_name=asked"])
    assert (config.algorithm.adv_estimator, config.trainer.project_name) == ("cw_grpo", "asked")
    about_settings = [check for check in doctor.QUICK if check.__module__ != data.__name__]  # there is no data here
    assert not [finding for _, finding in findings(config, about_settings) if finding.fatal]
    with pytest.raises(OptionsError, match=rf"{script}: verl has no setting no\.such; check the spelling\."):
        compose([str(examples / script), "no.such=2"])
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", examples / script, "algorithm.adv_estimator=cwgrpo"]
    result = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ") and "adv_estimator" in line
    assert not (examples.parent / "runs").exists()


def test_a_script_without_a_dry_run_is_not_started(tmp_path):
    script = tmp_path / "other.sh"
    script.write_text("touch started\n")
    with pytest.raises(OptionsError, match="does not support DRY_RUN=1"):
        compose([str(script)])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([], "V1 trainer; cw_plugin hooks PPOTrainer.__init__, "),
        (["trainer.use_v1=False"], "RayPPOTrainer; cw_plugin hooks RayPPOTrainer._"),
        (["algorithm.adv_estimator=grpo"], "no hook acts"),
    ],
)
def test_it_says_which_trainer_runs_and_what_is_hooked(composed, overrides, says):
    assert says in environment.trainer_and_hooks(changed(composed, *overrides))
