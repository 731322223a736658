"""cw-grpo doctor: each fault is planted, and seen by name; a run without faults gets no finding."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray_head import cluster
from typer.testing import CliRunner
from verl.trainer.config.algorithm import RolloutCorrectionConfig

from cw_plugin import doctor
from cw_plugin.cli import app
from cw_plugin.doctor import environment, settings
from cw_plugin.errors import OptionsError
from cw_plugin.verl_integration.config import compose
from cw_plugin.verl_integration.options import Options
from cw_plugin.weights import Kernel

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "examples" / "cpu" / "model"
A = "actor_rollout_ref"


def write_rows(path: Path, problem: str = "What is 2+2?", source: str = "knoveleng/open-rs", **columns: str) -> Path:
    row = {
        "data_source": source,
        "prompt": [{"role": "user", "content": problem}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
    }
    row = {columns.get(name, name): value for name, value in row.items()}
    pq.write_table(pa.Table.from_pylist([row, row]), path)
    return path


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> list[str]:
    file = write_rows(tmp_path_factory.mktemp("doctor") / "train.parquet")
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
        f"{A}.rollout.tensor_model_parallel_size=1",
        f"{A}.rollout.log_prob_micro_batch_size_per_gpu=4",
        "trainer.n_gpus_per_node=2",
        "reward.custom_reward_function.path=pkg://cw_plugin.rewards",
        "reward.custom_reward_function.name=compute_score",
    ]


def findings(overrides: list[str]) -> list[doctor.Finding]:
    """Of the settings and files; the environment has tests of its own."""
    about_settings = [check for check in doctor.CHECKS if check.__module__ != environment.__name__]
    return doctor.examine(compose(overrides), about_settings)


def test_a_run_without_faults_gets_no_finding(good):
    assert findings(good) == []


@pytest.mark.parametrize(
    ("fault", "check", "what", "fix", "fatal"),
    [
        ([f"{A}.actor.policy_loss.loss_mode=cw_grpo"], "method", "weigh every token twice", "loss_mode=vanilla", True),
        (["algorithm.adv_estimator=grpo"], "method", "adv_estimator=grpo", "adv_estimator=cw_grpo", False),
        (["algorithm.adv_estimator=cw_gpro"], "method", "verl does not know", "algorithm.adv_estimator=cw_grpo", True),
        ([f"{A}.actor.policy_loss.loss_mode=ppo"], "method", "verl does not know", "loss_mode=vanilla", True),
        (["+algorithm.cw_grpo.scope=prompt"], "method", "scope=prompt is unknown", "use one of group, batch", True),
        ([f"{A}.rollout.name=???"], "rollout", "rollout.name is not set", f"{A}.rollout.name=vllm", True),
        ([f"{A}.rollout.n=1"], "scope", "one response", f"{A}.rollout.n=12", True),
        (["+algorithm.cw_grpo.scope=batch"], "scope", "all prompts share", "scope=group", False),
        (
            [
                "algorithm.adv_estimator=grpo",
                f"{A}.actor.policy_loss.loss_mode=cw_grpo",
                f"{A}.actor.ppo_micro_batch_size_per_gpu=1",
            ],
            "scope",
            "micro-batches of one response",
            "loss_mode=vanilla",
            True,
        ),
        (
            ["data.train_batch_size=7", f"{A}.actor.ppo_mini_batch_size=3"],
            "batch sizes",
            "not a multiple of ppo_mini_batch_size=3",
            "data.train_batch_size=9",
            False,
        ),
        (["trainer.n_gpus_per_node=3"], "batch sizes", "3 data-parallel ranks", "data.train_batch_size=9", True),
        (
            ["model_engine=megatron", f"{A}.actor.megatron.tensor_model_parallel_size=4"],
            "batch sizes",
            "2 GPUs cannot be divided into model replicas of 4",
            "trainer.n_gpus_per_node=4",
            True,
        ),
        (
            [f"{A}.rollout.tensor_model_parallel_size=4"],
            "batch sizes",
            "rollout servers of 4",
            "tensor_model_parallel_size=1",
            True,
        ),
        (
            [f"{A}.actor.use_dynamic_bsz=True", f"{A}.actor.ppo_max_token_len_per_gpu=100"],
            "lengths",
            "192 tokens together; actor.ppo_max_token_len_per_gpu=100",
            "ppo_max_token_len_per_gpu=768",
            True,
        ),
        (
            [
                f"{A}.rollout.log_prob_use_dynamic_bsz=True",
                f"{A}.rollout.log_prob_max_token_len_per_gpu=100",
                f"{A}.actor.use_dynamic_bsz=True",
            ],
            "lengths",
            "rollout.log_prob_max_token_len_per_gpu=100",
            f"{A}.rollout.log_prob_max_token_len_per_gpu=768",
            True,
        ),
        ([f"{A}.actor.loss_agg_mode=token-mean"], "loss_agg_mode", "token-mean", "seq-mean-token-mean", False),
        ([f"{A}.rollout.max_model_len=100"], "lengths", "max_model_len=100", "max_model_len=192", True),
        (["data.max_response_length=5000"], "lengths", "positions", "data.max_response_length=", True),
        (
            [f"{A}.rollout.max_model_len=4096"],
            "lengths",
            "max_model_len=4096 but the model has 2048",
            "max_model_len=2048",
            True,
        ),
        (
            [f"{A}.model.custom_chat_template='{{{{nothing.at.all}}}}'"],
            "prompts",
            "the model's chat template cannot render the prompts",
            f"{A}.model.custom_chat_template=",
            True,
        ),
        (["data.max_prompt_length=2"], "prompts", "2 of 2 prompts", "data.max_prompt_length=", True),
        ([f"{A}.model.path=/no/such/model"], "model", "/no/such/model cannot be read", "model.path", True),
        (["data.train_files=/no/such/file.parquet"], "data", "does not exist", "cw-grpo prepare", True),
        (
            ["+custom_reward_function.path=my.py", "+custom_reward_function.name=score"],
            "reward",
            "stands at the top level",
            "reward.custom_reward_function.path=my.py reward.custom_reward_function.name=score",
            True,
        ),
        (
            ["reward.custom_reward_function.path=pkg://no_such_module"],
            "reward",
            "path=pkg://no_such_module cannot be loaded (",
            'pip install ".[data]"',
            True,
        ),
        (
            ["reward.custom_reward_function.path=null"],
            "reward",
            "no reward function for data_source knoveleng/open-rs",
            "path=pkg://cw_plugin.rewards",
            True,
        ),
        ([f"{A}.actor.ppo_micro_batch_size_per_gpu=null"], "verl", "ppo_micro_batch_size", "that verl names", True),
    ],
)
def test_a_planted_fault_is_named(good, fault, check, what, fix, fatal):
    if any(item.startswith("+custom_reward_function") for item in fault):
        fault = ["+" + item for item in fault]  # verl's configuration has the legacy key, with null in it
    # A fault may replace one of the good settings: hydra takes the later one.
    (finding,) = [f for f in findings(good + fault) if f.check == check and what in f.what]
    assert fix in finding.fix
    assert finding.fatal is fatal
    assert finding.why


@pytest.mark.parametrize(
    "unusual",
    [
        # verl multiplies the limit by the GPUs that share a sequence.
        [
            f"{A}.actor.use_dynamic_bsz=True",
            f"{A}.actor.ppo_max_token_len_per_gpu=100",
            f"{A}.actor.fsdp_config.ulysses_sequence_parallel_size=2",
        ],
        # Mini-batches of 8 responses on 16 GPUs, of which two share a sequence.
        [
            "trainer.n_gpus_per_node=16",
            f"{A}.actor.fsdp_config.ulysses_sequence_parallel_size=2",
            f"{A}.actor.ppo_mini_batch_size=4",
            f"{A}.rollout.n=2",
        ],
        ["data.val_files=hdfs://host/test.parquet"],  # verl copies it
        ["algorithm.rollout_correction.rollout_is_threshold=0.5_2.0"],  # a number by default
        ["data.val_batch_size=8", "trainer.save_freq=null", f"{A}.rollout.temperature=1", "trainer.logger=console"],
    ],
)
def test_what_verl_accepts_is_no_fault(good, unusual):
    assert [finding for finding in findings(good + unusual) if finding.fatal or finding.check == "batch sizes"] == []


def test_the_column_of_the_prompt_has_the_name_that_verl_is_told(good, tmp_path):
    file = write_rows(tmp_path / "train.parquet", prompt="question")
    asked = [*good, f"data.train_files={file}", f"data.val_files={file}"]
    assert {finding.check for finding in findings(asked)} == {"data"}
    assert findings([*asked, "data.prompt_key=question"]) == []


def test_vllm_is_asked_for_where_it_is_used(monkeypatch, good):
    monkeypatch.setitem(environment.TESTED, "vllm", "0.0.0")
    for engine, expected in (("vllm", ["vllm"]), ("sglang", [])):
        config = compose([*good, f"{A}.rollout.name={engine}"])
        assert [f.what.split()[0] for f in environment.versions(config) if f.what.startswith("vllm")] == expected


def test_what_the_doctor_recommends_works(good):
    """The overrides of a few findings, taken literally."""
    for fault in (
        [f"{A}.actor.ppo_mini_batch_size=3"],
        ["data.train_batch_size=7", f"{A}.actor.ppo_mini_batch_size=3", f"{A}.rollout.n=3"],  # 9 responses, 2 ranks
        ["data.max_response_length=100000", f"{A}.actor.use_dynamic_bsz=True", f"{A}.rollout.max_model_len=200"],
        [f"{A}.rollout.max_model_len=100"],
        ["trainer.n_gpus_per_node=3"],
        ["data.max_response_length=5000", f"{A}.rollout.max_model_len=100"],  # the model has 2048 positions
        ["data.max_prompt_length=3000", "data.max_response_length=3000"],
        [f"{A}.rollout.max_model_len=4096", "data.max_response_length=4000"],
    ):
        found = [finding for finding in findings(good + fault) if finding.check in ("batch sizes", "lengths")]
        assert found
        fixes = [override for finding in found for override in finding.fix.split()]
        assert findings(good + fault + fixes) == []


@pytest.mark.parametrize(
    ("columns", "content", "what"),
    [
        ({"reward_model": "answer"}, None, "lacks the column(s) reward_model; it has data_source, prompt, answer"),
        ({}, b"not a parquet file", "is no parquet file"),
    ],
)
def test_a_file_that_verl_cannot_use(good, tmp_path, columns, content, what):
    file = write_rows(tmp_path / "train.parquet", **columns)
    if content:
        file.write_bytes(content)
    (finding,) = [f for f in findings([*good, f"data.train_files={file}"]) if f.check == "data"]
    assert what in finding.what


def test_overlong_prompts_are_counted_as_verl_tokenises_them(good, tmp_path):
    file = write_rows(tmp_path / "train.parquet", problem="What is 1+1? " * 40)
    overrides = [*good, f"data.train_files={file}", "data.max_prompt_length=128"]
    (finding,) = [f for f in findings(overrides) if f.check == "prompts"]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    chat = [{"role": "user", "content": "What is 1+1? " * 40}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
    assert f"the longest {len(ids)}" in finding.what

    longer = ["+data.apply_chat_template_kwargs.chat_template='{{ messages[0].content }}{{ messages[0].content }}'"]
    (finding,) = [f for f in findings(overrides + longer) if f.check == "prompts"]
    assert f"the longest {2 * len(tokenizer.encode(chat[0]['content']))}" in finding.what


@pytest.mark.parametrize(("has", "fatal"), [("experimental/ppo", []), ("experimental/grpo", [True])])
def test_a_trl_that_verl_cannot_train_beside_is_seen(good, tmp_path, monkeypatch, has, fatal):
    (tmp_path / "trl" / has).mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    found = [finding for finding in environment.versions(compose(good)) if "TRL" in finding.what]
    assert [finding.fatal for finding in found] == fatal


def test_the_environment_of_these_tests_is_sound_and_a_broken_one_is_seen(good, monkeypatch):
    config = compose(good)
    assert list(environment.versions(config)) == []
    assert list(environment.fresh_interpreter(config)) == []

    monkeypatch.setitem(environment.TESTED, "verl", "0.8.0")
    monkeypatch.setitem(environment.TESTED, "no-such-package", "1.0")
    versions = {finding.what: finding.fatal for finding in environment.versions(config)}
    required = importlib.metadata.requires("verl")
    for package, verls in environment.VERLS.items():
        assert f'{package}=={verls}; extra == "vllm"' in required
    monkeypatch.setattr(environment, "version", lambda package: environment.VERLS.get(package, "0"))
    assert not {finding.what.split()[0] for finding in environment.versions(config)} & environment.VERLS.keys()
    monkeypatch.undo()
    assert versions == {"verl is 0.9.1; the tests run with 0.8.0": False, "no-such-package is not installed": True}

    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")  # the entry point is not looked at
    (finding,) = environment.fresh_interpreter(config)
    assert "does not find the plugin" in finding.what and "cw_grpo" in finding.what
    assert "VERL_USE_EXTERNAL_PLUGINS" in finding.fix


def test_the_command(good, tmp_path):
    def command(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["doctor", *arguments, "--no-ray"], env={"COLUMNS": "500"})
        return result.exit_code, result.stdout + result.stderr

    code, output = command(*good)
    first, *rest = output.splitlines()
    assert (code, rest) == (0, ["0 wrong, 0 to note"])  # and nothing of what verl prints
    assert first.startswith("verl's V1 trainer; cw_plugin hooks PPOTrainer.__init__, compute_advantage_for")
    code, output = command(*good, f"{A}.rollout.n=1", f"{A}.actor.loss_agg_mode=token-mean")
    assert (code, output.splitlines()[-1]) == (1, "1 wrong, 1 to note")
    code, output = command("--json", *good, f"{A}.rollout.n=1")
    assert code == 1
    (finding,) = json.loads(output)
    assert set(finding) == {"check", "what", "why", "fix", "fatal"}
    script = tmp_path / "other.sh"
    script.write_text("python3 -m verl.trainer.main_ppo\n")
    code, output = command(str(script))
    assert code == 2 and "does not support DRY_RUN=1" in output


@pytest.mark.parametrize(
    ("mistyped", "said"),
    [
        (f"{A}.rollout.m=8", f"verl has no setting {A}.rollout.m; did you mean {A}.rollout.n?"),
        ("no.such.key=1", "verl has no setting no.such.key; check the spelling"),
        ("algorithm.adv_estimator=cwgrpo", "algorithm.adv_estimator=cwgrpo is a name that verl does not know"),
        ("algorithm.adv_estimator=[grpo]", "is a name that verl does not know"),
        (f"{A}.actor.policy_loss.loss_mode=vanila", "fix: actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"),
        ("+algorithm.cw_grpo.scpoe=batch", "algorithm.cw_grpo.scpoe is unknown"),
        ("+algorithm.cw_grpo.scope=prompt", "algorithm.cw_grpo.scope=prompt is unknown"),
        ("+algorithm.cw_grpo=batch", "algorithm.cw_grpo='batch' must hold keys"),
        (f"{A}.actor.policy_loss.loss_mode=cw_grpo", "would weigh every token twice"),
        ("algorithm.use_kl_in_reward=Ture", "algorithm.use_kl_in_reward=Ture is not True or False"),
        ("data.train_batch_size=8k", "data.train_batch_size=8k is not a number"),
        ("data.train_batch_size=???", "data.train_batch_size=??? is not a number"),
        (f"{A}.rollout.n=[8]", f"{A}.rollout.n=[8] is not a number"),
        (f"{A}.rollout.n=null", f"{A}.rollout.n=None is not a whole number from 1"),
        ("trainer.n_gpus_per_node=0", "trainer.n_gpus_per_node=0 is not a whole number from 1"),
        ("trainer=5", "trainer=5 replaces a group of settings"),
        ("trainer.n_gpus_per_node=3", "cannot be divided by 3 data-parallel ranks"),
        ("model_engine=megatorn", "Could not find 'model_engine/megatorn'"),
        ("trainer.project_name='${no.such}'", "Interpolation key 'no.such' not found"),
        ("algorithm.adv_estimator=grpo,gae", "Ambiguous value"),
        ("adv_estimator", "'adv_estimator' is not a hydra override"),
        ("+data.x={", "'+data.x={' is not a hydra override"),
        ("--quik", "'--quik' is not a hydra override"),
        ("=3", "hydra refuses the overrides"),
    ],
)
def test_whatever_is_mistyped_ends_in_one_sentence(good, mistyped, said):
    result = CliRunner().invoke(app, ["doctor", "--quick", *good, mistyped])
    assert result.exit_code == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ") and said in line


def test_the_quick_check_says_nothing_of_what_may_run(good):
    for allowed in (
        [],
        ["algorithm.adv_estimator=grpo"],
        ["algorithm.adv_estimator=rloo"],
        ["data.train_batch_size=9"],
    ):
        result = CliRunner().invoke(app, ["doctor", "--quick", *good, *allowed])
        assert (result.exit_code, result.output) == (0, "")


def test_the_quick_check_loads_neither_torch_nor_verl(good):
    code = (
        "import sys\n"
        "from cw_plugin.doctor import QUICK, examine\n"
        "from cw_plugin.verl_integration.config import compose\n"
        "assert not [f for f in examine(compose(sys.argv[1:]), QUICK) if f.fatal]\n"
        "assert not {'torch', 'verl', 'ray'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code, *good], check=True)


def test_the_kernels_that_the_options_allow_are_those_of_the_weights():
    for kernel in get_args(Kernel):
        Options.from_config({"cw_grpo": {"kernel": kernel}})
    with pytest.raises(OptionsError, match=f"use one of {', '.join(get_args(Kernel))}"):
        Options.from_config({"cw_grpo": {"kernel": "none of these"}})


def test_text_is_taken_where_verl_takes_it():
    """verl's own annotation of the one number that may be text."""
    annotations = {
        f"algorithm.rollout_correction.{f.name}": f.type for f in dataclasses.fields(RolloutCorrectionConfig)
    }
    assert {key for key, kind in annotations.items() if kind == (str | float)} == set(settings.TEXT_TOO)


def test_a_check_that_fails_is_said_and_the_others_go_on(good):
    config = compose([*good, "~trainer.nnodes"])
    found = doctor.examine(config, [settings.batch_sizes, settings.method, settings.aggregation])
    (finding,) = found
    assert finding.check == "doctor" and "settings.batch_sizes failed: ConfigAttributeError" in finding.what
    assert not finding.fatal


@pytest.fixture(scope="module")
def examples(tmp_path_factory) -> Path:
    """A copy of the scripts whose environment is this one: there is nothing to install."""
    root = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "examples", root / "examples", ignore=shutil.ignore_patterns("study"))
    (root / "examples" / "cpu" / "install.sh").write_text("")
    return root / "examples"


SCRIPTS = ["quickstart_cpu.sh", "run_qwen2_5_math_7b_fsdp.sh", "run_qwen2_5_math_7b_megatron.sh"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_asked_for_its_own_configuration(script, examples):
    config = compose([str(examples / script), "trainer.project_name=asked"])
    assert (config.algorithm.adv_estimator, config.trainer.project_name) == ("cw_grpo", "asked")
    assert type(config.actor_rollout_ref.actor.optim.lr) is float
    assert not [finding for finding in doctor.examine(config, doctor.QUICK) if finding.fatal]
    with pytest.raises(OptionsError, match=rf"{script}: verl has no setting no\.such; check the spelling\."):
        compose([str(examples / script), "no.such=2"])
    assert not (examples.parent / "runs").exists() and not (examples.parent / ".cache").exists()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_nothing_that_the_quick_check_refuses(script, examples):
    path = f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"
    run = [["bash", examples / script, override] for override in ("algorithm.adv_estimator=cwgrpo", "no.such=2")]
    for command in run:
        result = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=300)
        assert result.returncode == 2 and result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("Error: ") and command[2].split("=")[0] in line
    assert not (examples.parent / "runs").exists() and not (examples.parent / ".cache").exists()


def test_a_ray_head_that_runs_or_has_gone(good, examples, monkeypatch, tmp_path):
    """What Ray does itself where ``ray start`` has left a note of its head, and what the quick check says before."""

    def found(*overrides: str) -> list[doctor.Finding]:
        return list(environment.ray_cluster(compose([*good, *overrides])))

    def quickstarts() -> dict[str, Any]:
        return compose([str(examples / "quickstart_cpu.sh")]).ray_kwargs.ray_init

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    limits = ("ray_kwargs.ray_init.num_cpus=16", "+ray_kwargs.ray_init.num_gpus=1")
    with cluster("--num-cpus=1") as (address, folder):
        monkeypatch.setenv("RAY_TMPDIR", folder)
        note = Path(folder) / "ray" / "ray_current_cluster"
        assert found() == [] == found(*limits, "+ray_kwargs.ray_init.address=local")
        (finding,) = found(*limits)
        assert finding.fatal and f"sets num_cpus and num_gpus, and {note} names a running Ray cluster" in finding.what
        with pytest.raises(ValueError, match="num_cpus and num_gpus must not be provided"):
            ray.init(num_cpus=16, num_gpus=1)
        assert quickstarts().address == "local"
        ray.init(**{key: quickstarts()[key] for key in ("address", "num_cpus", "num_gpus", "include_dashboard")})
        try:
            assert ray.cluster_resources()["CPU"] == 16  # a Ray of its own
        finally:
            ray.shutdown()
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert found() == []
        assert "address" not in quickstarts() and quickstarts().num_cpus is None
        (finding,) = found(*limits)
        assert "RAY_ADDRESS names a running" in finding.what
        monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # the head has gone, and Ray leaves the note
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(address)
    for overrides in ((), limits):
        (finding,) = found(*overrides)
        assert finding.fatal and "names a Ray cluster" in finding.what and "nobody answers there" in finding.what
    assert found("+ray_kwargs.ray_init.address=local") == []
    assert list(environment.ray_workers(compose(good))) == []  # said above; Ray itself waits for minutes
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    (finding,) = found()
    assert "RAY_ADDRESS names a Ray cluster, 127.0.0.1:9, and nobody answers there" in finding.what
    result = CliRunner().invoke(app, ["doctor", "--quick", *good])
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1


def test_the_slurm_script_can_be_read():
    assert subprocess.run(["bash", "-n", ROOT / "examples" / "slurm.sbatch"]).returncode == 0


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["algorithm.adv_estimator=cw_grpo"], "V1 trainer; cw_plugin hooks PPOTrainer.__init__, "),
        (["algorithm.adv_estimator=cw_grpo", "trainer.use_v1=False"], "RayPPOTrainer; cw_plugin hooks RayPPOTrainer._"),
        (["algorithm.adv_estimator=grpo"], "no hook acts"),
    ],
)
def test_it_says_which_trainer_runs_and_what_is_hooked(overrides, says):
    assert says in environment.trainer_and_hooks(compose(overrides))
