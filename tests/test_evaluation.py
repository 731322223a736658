"""What is asked, kept and refused. A calculator takes main_ppo's place; test_e2e.py has the real one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from cw_plugin.cli import app
from cw_plugin.errors import DataError, HostError, OptionsError
from cw_plugin.evaluation import ask
from cw_plugin.evaluation.benchmarks import read_benchmarks
from cw_plugin.evaluation.models import find_models, fingerprint, merged
from cw_plugin.reports.evaluations import read_answers

MODEL = Path(__file__).parent.parent / "examples" / "cpu" / "model"
QUESTIONS = [("What is 9 + 14?", "23"), ("What is 2 + 2?", "4"), ("What is 3 + 4?", "8")]  # the last answer is wrong
LENGTHS = ["data.max_prompt_length=64", "data.max_response_length=64"]
SAMPLING = "actor_rollout_ref.rollout.val_kwargs"

# Reads what main_ppo would, and dumps right answers as verl does: in any order, all or the first so many.
CALCULATOR = r"""
import json, random, sys
import pyarrow.parquet as pq
from omegaconf import OmegaConf

config = OmegaConf.load(sys.argv[1])
rows = pq.read_table(config.data.val_files).to_pylist()[: int(sys.argv[2])]
assert config.trainer.val_only and config.actor_rollout_ref.rollout.val_kwargs.n == 1 and rows[0]["extra_info"]["level"]
print("one line of verl's output")
if sys.argv[3:]:
    sys.exit("CUDA is on fire")
dump = []
for row in random.sample(rows, len(rows)):
    text, gold = row["prompt"][-1]["content"], row["reward_model"]["ground_truth"]
    output = str(sum(int(word) for word in text.rstrip("?").split() if word.isdigit())) + "\u2028"
    acc = float(output.strip() == gold)
    dump.append({"input": text, "output": output, "gts": gold, "score": acc, "acc": acc,
                 "question": row["extra_info"]["question"]})
with open(config.trainer.validation_data_dir + "/0.jsonl", "w") as file:
    file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in dump)
"""


class Calculator:
    """Counts its starts; answers only the first ``limit`` rows, or fails."""

    def __init__(self, monkeypatch):
        self.starts: list[int] = []  # rows asked in each
        self.limit, self.fails = 10**6, False
        write = ask._command

        def command(work, part):
            write(work, part)
            self.starts.append(len(work.rows))
            arguments = [str(part / "verl.yaml"), str(self.limit), *["fail"] * self.fails]
            return [sys.executable, "-c", CALCULATOR, *arguments]

        monkeypatch.setattr(ask, "_command", command)


@pytest.fixture
def calculator(monkeypatch):
    return Calculator(monkeypatch)


def sums(path: Path, questions=QUESTIONS, system="Think.") -> Path:
    rows = [
        {
            "data_source": "knoveleng/AMC-23",
            "prompt": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": gold},
            "extra_info": {"level": "Easy"},
        }
        for question, gold in questions
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def run(tmp_path: Path, *overrides: str, specs=("sums",), models=(str(MODEL),)) -> list[str]:
    said: list[str] = []
    chosen = read_benchmarks([f"{spec}={tmp_path / 'sums.parquet'}" for spec in specs], tmp_path)
    ask.evaluate(models, chosen, tmp_path / "out", [*LENGTHS, *overrides], said.append)
    return said


def dumped(tmp_path: Path, name="sums", model="model") -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "out" / model / f"{name}.jsonl").read_text().split("\n")[:-1]]


def test_answers_are_verls_by_question_and_are_not_asked_again(calculator, tmp_path):
    sums(tmp_path / "sums.parquet", [*QUESTIONS, ("1 + " * 100 + "1?", "101")])
    said = run(tmp_path, specs=["one@2", "two"])
    assert calculator.starts == [9]  # one start; the prompt that is too long is not asked
    assert [row["question"] for row in dumped(tmp_path, "one")] == [f"one/{i}" for i in range(4) for _ in range(2)]
    assert [row["acc"] for row in dumped(tmp_path, "one")] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert dumped(tmp_path, "two")[0]["output"] == "23\u2028" and dumped(tmp_path, "two")[3]["output"] == ""
    assert any("1 of 4 prompts of two have more than data.max_prompt_length=64 tokens" in text for text in said)
    assert said[-2:] == [
        "model: one pass@1 50.00% (4 of 8 answers right)",
        "model: two pass@1 50.00% (2 of 4 answers right)",
    ]
    answers, notes = read_answers(tmp_path / "out")
    assert notes == [] and [(a.model, a.benchmark, a.samples) for a in answers] == [
        ("model", "one", 2),
        ("model", "two", 1),
    ]
    assert list(answers[0].accuracy.values()) == [1, 1, 0, 0]
    assert answers[0].settings["evaluation.checkpoint"] == str(MODEL)
    machine = ["trainer.n_gpus_per_node=1", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3",
               "actor_rollout_ref.rollout.tensor_model_parallel_size=2", "reward.num_workers=1"]  # fmt: skip
    assert run(tmp_path, *machine, specs=["one@2", "two", "three"])[-3:-1] == said[-2:]
    assert calculator.starts == [9, 3]  # only what is new
    assert sorted(p.name for p in (tmp_path / "out" / "model").iterdir()) == [
        f"{name}.{kind}" for name in ("one", "three", "two") for kind in ("jsonl", "yaml")
    ] + ["verl.log"]  # fmt: skip


def test_answers_under_other_settings_are_not_mixed(tmp_path):
    """Each setting alone, of those that are easily forgotten. Settings of the machine do not count."""
    overrides = [
        f"{SAMPLING}.temperature=1", f"{SAMPLING}.top_p=0.5", f"{SAMPLING}.top_k=5", f"{SAMPLING}.do_sample=False",
        "data.max_response_length=63", "actor_rollout_ref.rollout.seed=7", "actor_rollout_ref.rollout.quantization=fp8",
        "actor_rollout_ref.model.lora_adapter_path=/adapter", "actor_rollout_ref.rollout.load_format=safetensors",
        "actor_rollout_ref.rollout.dtype=float32", "+actor_rollout_ref.model.override_config.rope_theta=5000",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.rope_theta=5000",
        "+data.apply_chat_template_kwargs.enable_thinking=False", "actor_rollout_ref.model.custom_chat_template=hello",
        "reward.custom_reward_function.path=reward.py", "reward.custom_reward_function.name=other",
        "+reward.custom_reward_function.reward_kwargs.format_weight=0",
    ]  # fmt: skip
    machine = ["trainer.nnodes=2", "actor_rollout_ref.rollout.gpu_memory_utilization=0.3", "reward.num_workers=1",
               "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
               "actor_rollout_ref.rollout.max_num_seqs=7"]  # fmt: skip
    plain, other, moved = (
        OmegaConf.to_container(ask.compose([*ask.VALIDATION, *LENGTHS, *some]), resolve=True)
        for some in ([], overrides, machine)
    )
    file = tmp_path / "sums.yaml"
    file.write_text(OmegaConf.to_yaml({"evaluation": {"samples": 1}, **plain}))
    ask._refuse_others(file, {"evaluation": {"samples": 1}, **moved})
    with pytest.raises(OptionsError, match=r"was asked with evaluation.samples=1, and now it is 2; use the same"):
        ask._refuse_others(file, {"evaluation": {"samples": 2}, **plain})
    for key, value in (override.lstrip("+").split("=") for override in overrides):
        changed = OmegaConf.create({"evaluation": {"samples": 1}, **plain})
        OmegaConf.update(changed, key, OmegaConf.select(OmegaConf.create(other), key))
        with pytest.raises(
            OptionsError, match=rf"sums.jsonl was asked with {re.escape(key)}=.*, and now it is {value};"
        ):
            ask._refuse_others(file, OmegaConf.to_container(changed))


def test_answers_to_other_questions_or_by_other_weights_are_not_mixed(calculator, tmp_path):
    model, adapter, reward = tmp_path / "model", tmp_path / "adapter", tmp_path / "reward.py"
    shutil.copytree(MODEL, model)
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_text("")
    reward.write_text("")
    overrides = [f"actor_rollout_ref.model.lora_adapter_path={adapter}", f"reward.custom_reward_function.path={reward}"]
    sums(tmp_path / "sums.parquet")
    run(tmp_path, *overrides, models=[str(model)])
    changes = {  # which stay: that which is compared first is named
        "files.reward.custom_reward_function.path": lambda: reward.write_text("pass"),
        "files.actor_rollout_ref.model.lora_adapter_path": lambda: os.utime(adapter / "adapter_model.safetensors"),
        "weights": lambda: os.utime(model / "model.safetensors"),  # trained again, under the same name
    }
    sums(tmp_path / "sums.parquet", system="Think twice.")
    with pytest.raises(OptionsError, match=r"was asked with evaluation.questions="):
        run(tmp_path, *overrides, models=[str(model)])
    for key, change in changes.items():
        change()
        with pytest.raises(OptionsError, match=f"was asked with evaluation.{key}="):
            run(tmp_path, *overrides, models=[str(model)])
    (tmp_path / "out" / "model" / "sums.yaml").unlink()  # an earlier version wrote none
    with pytest.raises(OptionsError, match=r"has no sums.yaml of this version; use .*another folder"):
        run(tmp_path, *overrides, models=[str(model)])


def test_what_verl_did_not_finish_starts_again(calculator, tmp_path):
    sums(tmp_path / "sums.parquet")
    calculator.fails = True
    with pytest.raises(
        HostError, match=r"exit code 1 .* model. Its output, .*verl.log, ends:\none line .*\nCUDA is on"
    ):
        run(tmp_path, specs=["one", "two"])
    assert read_answers(tmp_path / "out")[1] == [
        f"model is not finished on {name}: evaluate it again to complete it." for name in ("one", "two")
    ]
    calculator.fails, calculator.limit = False, 4
    with pytest.raises(HostError, match=r"not graded every answer to two; .*verl.log"):
        run(tmp_path, specs=["one", "two"])
    calculator.limit = 6
    run(tmp_path, f"{SAMPLING}.n=1", specs=["one", "two"])
    assert calculator.starts == [6, 6, 3] and len(dumped(tmp_path, "two")) == 3


def test_two_evaluations_do_not_write_to_one_folder(calculator, tmp_path):
    import fcntl

    sums(tmp_path / "sums.parquet")
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OptionsError, match="another evaluation writes to it"):
            run(tmp_path)


def test_what_an_evaluation_starts_ends_with_it(tmp_path):
    log = tmp_path / "log"
    code = (
        "import sys; from pathlib import Path; from cw_plugin.evaluation.ask import run_to_log; "
        "run_to_log(['sh', '-c', 'echo $$; exec sleep 600'], Path(sys.argv[1]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, log])
    while not (log.exists() and log.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.1)
    started = psutil.Process(int(log.read_text()))
    process.kill()
    process.wait()
    started.wait(timeout=30)


def checkpoint(folder: Path) -> Path:
    (folder / "actor" / "huggingface").mkdir(parents=True)
    (folder / "actor" / "model_world_size_1_rank_0.pt").write_text("weights")
    return folder


def test_a_run_means_all_its_checkpoints_and_models_may_be_named(tmp_path):
    said: list[str] = []
    folder = tmp_path / "run" / "checkpoints"
    for step in (100, 20):
        checkpoint(folder / f"global_step_{step}")
    (folder / "global_step_5").mkdir()  # verl keeps the folder of a deleted checkpoint
    shutil.copytree(MODEL, tmp_path / "other" / "model")
    arguments = [str(folder.parent), str(folder / "global_step_100" / "actor"), str(MODEL), f"b={tmp_path}/other/model",
                 f"again={folder}", "deepseek-ai/R1"]  # fmt: skip
    assert [(model.name, model.step) for model in find_models(arguments, said.append)] == [
        ("run-global_step_20", 20), ("run-global_step_100", 100), ("model", None), ("b", None),
        ("again-global_step_20", 20), ("again-global_step_100", 100), ("R1", None),
    ]  # fmt: skip
    assert all("global_step_5 is left out" in text for text in said)
    (folder / "latest_checkpointed_iteration.txt").write_text("20")  # 100 is being written
    assert [model.step for model in find_models(arguments[:1], said.append)] == [20]
    with pytest.raises(OptionsError, match="model are both model; name one, as NAME=FOLDER"):
        find_models([str(MODEL), f"{tmp_path}/other/model"], said.append)


def test_a_lora_checkpoint_is_not_evaluated_as_its_base_model(tmp_path):
    """As verl's FSDP engine saves one, through verl's own merger."""
    from peft import LoraConfig, get_peft_model

    place = tmp_path / "run" / "global_step_1"
    actor = checkpoint(place) / "actor"
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, actor / "huggingface")
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    torch.save(adapted.state_dict(), actor / "model_world_size_1_rank_0.pt")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}))
    (found,) = find_models([str(place)], print)
    with pytest.raises(DataError, match=r"LoRA adapter.*merge_and_unload"):
        merged(found, fingerprint(actor), tmp_path / "cache", print)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".log"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No model is given"),
        (["{tmp}/nothing"], "does not exist"),
        (["~/nothing"], "'~/nothing' does not exist"),  # no override that deletes a key
        (["{tmp}"], "holds no model"),
        (["~/run/global_step_5"], "run/global_step_5 holds no model .*, and no whole checkpoint"),
        (["{tmp}/run"], "run holds no model"),
        (["{tmp}/empty"], "has no weights"),
        (["MODEL", "--benchmarks", ""], "'' is no benchmark"),
        (["MODEL", "--benchmarks", "aime25"], "'aime25' is no benchmark, .*use aime24"),
        (["MODEL", "--benchmarks", "aime24"], "aime24/test.parquet does not exist.*cw-grpo prepare aime24"),
        (["MODEL", "--benchmarks", "aime24", "--data-dir", "~/data"], "{tmp}/data/aime24/test.parquet does not exist"),
        (["MODEL", "--benchmarks", "s={tmp}/sums.parquet s={tmp}/sums.parquet"], "has the name of another"),
        (["MODEL", "--benchmarks", "s@0={tmp}/sums.parquet"], "is no benchmark"),
        (["MODEL", "--benchmarks", "s={tmp}/text.parquet"], "text.parquet is no parquet file"),
        (["MODEL", "--benchmarks", "s={tmp}/no-answer.parquet"], "Row 0 of .*no-answer.parquet lacks"),
        (["MODEL", "--benchmarks", "s={tmp}/string.parquet"], "Row 0 of .*string.parquet lacks"),
        (["MODEL", "--benchmarks", "s=/home/o'brien/sums.parquet"], "No closing quotation; "),
        (["{tmp}/no-system", *LENGTHS], "prompts cannot be rendered .*no system turn"),
        (["MODEL"], "has 2048 positions, less than the 32768"),
        (["MODEL", "data.nothing=1"], "verl has no setting"),
        (["MODEL", "--out", "/proc/foo"], "/proc/foo cannot be used"),
    ],
)
def test_bad_input_ends_in_one_sentence(tmp_path, arguments, message):
    (tmp_path / "run" / "global_step_5").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    (tmp_path / "text.parquet").write_text("no parquet")
    rows = pq.read_table(sums(tmp_path / "sums.parquet")).to_pylist()
    for name, change in (("string", {"prompt": "What is 9 + 14?"}), ("no-answer", {"reward_model": {"style": "rule"}})):
        pq.write_table(pa.Table.from_pylist([row | change for row in rows]), tmp_path / f"{name}.parquet")
    shutil.copytree(MODEL, tmp_path / "no-system")
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    (tmp_path / "no-system" / "chat_template.jinja").write_text(template)
    given = [text.replace("{tmp}", str(tmp_path)).replace("MODEL", str(MODEL)) for text in arguments]
    for option, value in (("--benchmarks", f"s={tmp_path}/sums.parquet"), ("--out", f"{tmp_path}/out"),
                          ("--data-dir", f"{tmp_path}")):  # fmt: skip
        given += [] if option in given else [option, value]
    result = CliRunner().invoke(app, ["evaluate", *given], env={"HOME": str(tmp_path)})
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ") and re.search(message.replace("{tmp}", str(tmp_path)), result.stderr)
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("out/*/*.jsonl"))


def test_main_ppo_reads_the_configuration(tmp_path):
    overrides = [f"{SAMPLING}.top_k=20", "trainer.n_gpus_per_node=8",
                 "actor_rollout_ref.model.custom_chat_template='{{messages}}'",
                 "+reward.custom_reward_function.reward_kwargs.opens_think=True"]  # fmt: skip
    folder = tmp_path / "a name with = and 'quotes'"
    part = folder / ".part"
    part.mkdir(parents=True)
    config = OmegaConf.to_container(ask.compose([*ask.VALIDATION, *LENGTHS, *overrides]), resolve=True)
    rows = [{"extra_info": {"question": "sums/0"}}]
    work = ask.Work("name", "/a model", folder, {"sums": {"evaluation": {}, **config}}, rows, {}, {})
    command = ask._command(work, part)
    printed = subprocess.run([*command, "--cfg", "job"], capture_output=True, text=True, check=True).stdout
    read = OmegaConf.create(printed)
    assert read.trainer.val_only and read.trainer.val_before_train and read.trainer.resume_mode == "disable"
    assert read.actor_rollout_ref.rollout.val_kwargs.top_k == 20 and read.data.max_response_length == 64
    assert read.reward.custom_reward_function.reward_kwargs == {"opens_think": True, "model_path": "/a model"}
    assert read.trainer.validation_data_dir == str(part) and read.data.train_batch_size == 8
    assert len(read.data.train_files) == 8 and "evaluation" not in read
