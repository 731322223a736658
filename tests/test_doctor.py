"""cw-grpo doctor: each fault is planted, and seen by name; a run without faults gets no finding."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import Qwen2_5_VLConfig, Qwen2Config
from typer.testing import CliRunner

from cw_plugin import doctor
from cw_plugin.cli import app
from cw_plugin.doctor import environment, memory
from cw_plugin.errors import OptionsError

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
    config = doctor.compose(overrides)
    about_settings = [check for check in doctor.CHECKS if check.__module__ != environment.__name__]
    return [finding for check in about_settings for finding in check(config)]


def test_a_run_without_faults_gets_no_finding(good):
    assert findings(good) == []


@pytest.mark.parametrize(
    ("fault", "check", "what", "mend", "fatal"),
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
        ([f"{A}.actor.ppo_mini_batch_size=3"], "batch sizes", "no multiple of ppo_mini_batch_size=3", "=8", True),
        (["trainer.n_gpus_per_node=3"], "batch sizes", "3 data-parallel ranks", "data.train_batch_size=9", False),
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
            "vLLM servers of 4",
            "tensor_model_parallel_size=1",
            True,
        ),
        (
            [f"{A}.actor.use_dynamic_bsz=True", f"{A}.actor.ppo_max_token_len_per_gpu=100"],
            "batch sizes",
            "less than one sequence of 192 tokens",
            "ppo_max_token_len_per_gpu=768",
            True,
        ),
        (
            [
                f"{A}.rollout.log_prob_use_dynamic_bsz=True",
                f"{A}.rollout.log_prob_max_token_len_per_gpu=100",
                f"{A}.actor.use_dynamic_bsz=True",
            ],
            "batch sizes",
            "rollout.log_prob_max_token_len_per_gpu=100: less than one sequence of 192 tokens",
            f"{A}.rollout.log_prob_max_token_len_per_gpu=768",
            True,
        ),
        ([f"{A}.actor.loss_agg_mode=token-mean"], "loss_agg_mode", "token-mean", "seq-mean-token-mean", False),
        ([f"{A}.rollout.max_model_len=100"], "lengths", "max_model_len=100", "max_model_len=192", True),
        (["data.max_response_length=5000"], "lengths", "positions", "data.max_response_length=", True),
        ([f"{A}.rollout.max_model_len=4096"], "lengths", "the model has 2048 positions", "max_model_len=2048", True),
        (
            [f"{A}.model.custom_chat_template='{{{{nothing.at.all}}}}'"],
            "prompts",
            "the model's chat template does not take the prompts",
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
def test_a_planted_fault_is_named(good, fault, check, what, mend, fatal):
    if any(item.startswith("+custom_reward_function") for item in fault):
        fault = ["+" + item for item in fault]  # verl's configuration has the legacy key, with null in it
    # A fault may replace one of the good settings: hydra takes the later one.
    (finding,) = [f for f in findings(good + fault) if f.check == check and what in f.what]
    assert mend in finding.mend
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
        config = doctor.compose([*good, f"{A}.rollout.name={engine}"])
        assert [f.what.split()[0] for f in environment.versions(config) if f.what.startswith("vllm")] == expected


def test_what_the_doctor_recommends_mends(good):
    """The overrides of a few findings, taken literally."""
    for fault in (
        [f"{A}.actor.ppo_mini_batch_size=3"],
        [f"{A}.rollout.max_model_len=100"],
        ["trainer.n_gpus_per_node=3"],
        ["data.max_response_length=5000", f"{A}.rollout.max_model_len=100"],  # the model has 2048 positions
        ["data.max_prompt_length=3000", "data.max_response_length=3000"],
        [f"{A}.rollout.max_model_len=4096", "data.max_response_length=4000"],
    ):
        found = [finding for finding in findings(good + fault) if finding.check in ("batch sizes", "lengths")]
        assert found
        mends = [override for finding in found for override in finding.mend.split()]
        assert findings(good + fault + mends) == []


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


QWEN_1_5B = Qwen2Config(
    vocab_size=151936,
    hidden_size=1536,
    intermediate_size=8960,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    max_position_embeddings=131072,
    tie_word_embeddings=False,
)


def test_memory_against_known_sizes(good, tmp_path, monkeypatch):
    # DeepSeek-R1-Distill-Qwen-1.5B: 1,777,088,000 parameters, as its model card's file says.
    assert memory.parameter_count(QWEN_1_5B) == 1_777_088_000
    # 28 layers x 2 (K and V) x 2 heads x 128 wide x 2 bytes
    assert memory.cache_bytes(QWEN_1_5B, tokens=1000, parallel=1) == 28 * 2 * 2 * 128 * 2 * 1000

    QWEN_1_5B.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_text((MODEL / name).read_text())

    def on(gigabytes: int, *overrides: str) -> list[str]:
        monkeypatch.setattr(memory, "gpu_memory", lambda: [gigabytes * 2**30] * 2)
        model = f"{A}.model.path={tmp_path}"
        return [f.what for f in findings([*good, model, *overrides]) if f.check == "memory"]

    # Two GPUs: 16 bytes x 1.78e9 / 2 = 13.2 GiB each; vLLM's weights 3.3 GiB.
    assert on(80) == []
    (what,) = on(12)
    assert what.startswith("weights, gradients and optimizer take about 13 GiB of each GPU, which has 12")
    assert on(12, f"{A}.actor.fsdp_config.optimizer_offload=True") == []
    assert [what for what in on(80, f"{A}.rollout.gpu_memory_utilization=0.03") if "does not hold its weights" in what]
    (what,) = on(24, f"{A}.rollout.free_cache_engine=False")
    assert "held at the same time" in what
    Qwen2_5_VLConfig().save_pretrained(tmp_path)
    (what,) = on(80)
    assert what.startswith("not judged: Unrecognized configuration class")
    megatron = ("model_engine=megatron", f"{A}.actor.megatron.tensor_model_parallel_size=2")
    config = doctor.compose([*good, f"{A}.model.path={tmp_path}", *megatron])
    assert memory.training_bytes(config, 1_777_088_000) == (6 + 12) * 1_777_088_000 / 2


def test_the_environment_of_these_tests_is_sound_and_a_broken_one_is_seen(good, monkeypatch):
    config = doctor.compose(good)
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
    assert "VERL_USE_EXTERNAL_PLUGINS" in finding.mend


def test_the_command(good, tmp_path):
    def command(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["doctor", *arguments, "--no-ray"], env={"COLUMNS": "500"})
        return result.exit_code, result.stdout + result.stderr

    code, output = command(*good)
    assert (code, output) == (0, "0 wrong, 0 to note\n")  # and nothing of what verl prints
    code, output = command(*good, f"{A}.rollout.n=1", f"{A}.actor.loss_agg_mode=token-mean")
    assert (code, output.splitlines()[-1]) == (1, "1 wrong, 1 to note")
    code, output = command("--json", *good, f"{A}.rollout.n=1")
    assert code == 1
    (finding,) = json.loads(output)
    assert set(finding) == {"check", "what", "why", "mend", "fatal"}
    code, output = command("no.such.key=1")
    assert code == 2 and "Traceback" not in output and "no.such.key" in output
    script = tmp_path / "other.sh"
    script.write_text("python3 -m verl.trainer.main_ppo\n")
    code, output = command(str(script))
    assert code == 2 and "does not know DRY_RUN=1" in output


def test_a_recipe_is_asked_for_its_own_configuration(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}")
    config = doctor.compose([str(ROOT / "examples" / "run_qwen2_5_math_7b_fsdp.sh"), "trainer.nnodes=2"])
    assert (config.algorithm.adv_estimator, config.trainer.nnodes) == ("cw_grpo", 2)
    with pytest.raises(OptionsError, match=r"no\.such"):
        doctor.compose([str(ROOT / "examples" / "run_qwen2_5_math_7b_fsdp.sh"), "no.such.key=2"])
    assert subprocess.run(["bash", "-n", ROOT / "examples" / "slurm.sbatch"]).returncode == 0
