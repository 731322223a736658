"""What is asked, what is kept and what is refused, without starting verl; the runs of main_ppo are in test_e2e.py."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner
from verl import DataProto

from cw_plugin.cli import app
from cw_plugin.errors import EngineError, EvaluationError
from cw_plugin.evaluation.benchmarks import Benchmark, read_benchmarks
from cw_plugin.evaluation.engine import EvaluationOptions, Task, Verl
from cw_plugin.evaluation.lighteval_engine import Lighteval
from cw_plugin.evaluation.models import find_models, merged
from cw_plugin.evaluation.run import evaluate
from cw_plugin.evaluation.store import Answers, Journal
from cw_plugin.rewards import compute_score

MODEL = Path(__file__).parent.parent / "examples" / "cpu" / "model"
QUESTIONS = [("What is 9 + 14?", "23"), ("What is 2 + 2?", "4"), ("What is 3 + 4?", "7")]


def rows(questions=QUESTIONS, system="Think.") -> list[dict]:
    return [
        {
            "data_source": "knoveleng/AMC-23",
            "prompt": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": gold},
        }
        for question, gold in questions
    ]


def parquet(path: Path, content: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(content)
    pq.write_table(table.replace_schema_metadata({"cw_plugin.prompt_sha256": "a" * 64}), path)
    return path


class Calculator:
    """An engine that answers sums rightly; ``stop_after`` answers it stops as a killed one does."""

    trust_remote_code = False

    def __init__(self, stop_after: int | None = None, **settings: Any):
        self.settings = {"engine": "calculator", "temperature": 1.0, "top_p": 1.0, "top_k": -1,
                         "max_prompt_length": 64, "max_response_length": 64,
                         "apply_chat_template_kwargs": {}} | settings  # fmt: skip
        self.stop_after = stop_after
        self.asked: list[tuple[str, int, int]] = []
        self.seeds: list[int] = []

    def ask(self, task: Task, say) -> None:
        self.seeds.append(task.seed)
        journal = Journal(task.answers.journal)
        for row in task.rows:
            if len(self.asked) == self.stop_after:
                raise EngineError("killed")
            key = row["extra_info"]
            self.asked.append((key["benchmark"], key["index"], key["sample"]))
            sum_ = row["prompt"][-1]["content"].removeprefix("What is ").removesuffix("?").split(" + ")
            output = rf"<think>so</think> $\boxed{{{sum(map(int, sum_))}}}$"
            score = compute_score(row["data_source"], output, row["reward_model"]["ground_truth"])
            journal.write({**key, "output": output, **score, "tokens": 9})


def run(tmp_path: Path, engine: Calculator, benchmarks: list[Benchmark], *models: Path, **options) -> list[str]:
    said: list[str] = []
    options = EvaluationOptions(tmp_path / "out", **options)
    evaluate([str(model) for model in models or (MODEL,)], benchmarks, engine, options, said.append)
    return said


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_answers_and_settings_are_written_as_the_report_reads_them(tmp_path):
    file = parquet(tmp_path / "sums.parquet", rows([*QUESTIONS, ("What is 1 + 1?", "3")]))
    engine = Calculator()
    said = run(tmp_path, engine, read_benchmarks([f"sums@2={file}"], tmp_path, 1))
    answers = lines(tmp_path / "out" / "model" / "sums.jsonl")
    assert [(answer["index"], answer["sample"]) for answer in answers] == [(i, s) for i in range(4) for s in range(2)]
    assert answers[0] == {
        "benchmark": "sums", "index": 0, "sample": 0, "problem": "What is 9 + 14?", "ground_truth": "23",
        "output": r"<think>so</think> $\boxed{23}$", "score": 2.0, "acc": 1.0, "format": 1.0, "pred": "23", "tokens": 9,
    }  # fmt: skip
    assert [answer["acc"] for answer in answers] == [1.0] * 6 + [0.0] * 2  # the last question's gold is wrong
    settings = json.loads((tmp_path / "out" / "model" / "settings.json").read_text())
    assert settings["checkpoint"] == settings["model"] == str(MODEL) and settings["step"] is None
    assert settings["prompt_sha"] == "a" * 64 and settings["versions"]["verl"] == "0.9.1"
    entry = settings["benchmarks"]["sums"]
    assert (entry["questions"], entry["n"], entry["finished"]) == (4, 2, True)
    assert "sums pass@1 75.00 (6 of 8 answers right)" in said[-1]
    assert sorted(path.name for path in (tmp_path / "out" / "model").iterdir()) == ["settings.json", "sums.jsonl"]


@pytest.mark.parametrize("stop_after", [0, 1, 4])
def test_an_interrupted_evaluation_asks_only_what_is_missing(tmp_path, stop_after):
    file = parquet(tmp_path / "sums.parquet", rows())
    benchmarks = read_benchmarks([f"sums@2={file}", f"again={file}"], tmp_path, 1)
    first = Calculator(stop_after)
    with pytest.raises(EngineError, match="killed"):
        run(tmp_path, first, benchmarks)
    assert not (tmp_path / "out" / "model" / "again.jsonl").exists()
    for journal in (tmp_path / "out" / "model" / "journal").glob("*"):
        with journal.open("a") as torn:  # it was killed while it wrote
            torn.write('{"benchmark": "sums", "ind')
    second = Calculator()
    run(tmp_path, second, benchmarks)
    assert len(first.asked) == stop_after and len(second.asked) == 9 - stop_after
    assert not set(first.asked) & set(second.asked)
    assert len(lines(tmp_path / "out" / "model" / "sums.jsonl")) == 6
    assert (first.seeds == second.seeds) == (stop_after == 0)  # the same seed would give the same samples again
    third = Calculator()
    run(tmp_path, third, benchmarks)
    assert third.asked == []
    settings = json.loads((tmp_path / "out" / "model" / "settings.json").read_text())
    assert settings.get("interruptions", 0) == (stop_after > 0)  # the report says what that does to pass@1


def test_more_samples_are_added_and_fewer_take_none_away(tmp_path):
    file = parquet(tmp_path / "sums.parquet", rows())
    run(tmp_path, Calculator(), read_benchmarks([f"sums={file}"], tmp_path, 1))
    more = Calculator()
    run(tmp_path, more, read_benchmarks([f"sums={file}"], tmp_path, 3), n=3)
    assert sorted(more.asked) == [("sums", index, sample) for index in range(3) for sample in (1, 2)]
    run(tmp_path, Calculator(0), read_benchmarks([f"sums={file}"], tmp_path, 1))
    assert len(lines(tmp_path / "out" / "model" / "sums.jsonl")) == 9
    settings = json.loads((tmp_path / "out" / "model" / "settings.json").read_text())
    assert settings["n"] == 3 and settings["benchmarks"]["sums"]["n"] == 3
    with pytest.raises(EngineError):  # before an answer comes: nothing favours short ones
        run(tmp_path, Calculator(0), read_benchmarks([f"sums@4={file}"], tmp_path, 1), n=4)
    run(tmp_path, Calculator(), read_benchmarks([f"sums@4={file}"], tmp_path, 1), n=4)
    assert "interruptions" not in json.loads((tmp_path / "out" / "model" / "settings.json").read_text())


def test_answers_to_another_benchmark_outlive_the_end_of_this_one(tmp_path):
    file = parquet(tmp_path / "sums.parquet", rows())
    with pytest.raises(EngineError):
        run(tmp_path, Calculator(4), read_benchmarks([f"one={file}", f"two={file}"], tmp_path, 1))
    run(tmp_path, Calculator(0), read_benchmarks([f"one={file}"], tmp_path, 1))
    last = Calculator()
    run(tmp_path, last, read_benchmarks([f"two={file}"], tmp_path, 1))
    assert last.asked == [("two", 1, 0), ("two", 2, 0)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("temperature", 0.5), ("top_p", 0.5), ("top_k", 5), ("max_prompt_length", 63), ("max_response_length", 63),
     ("engine", "other"), ("apply_chat_template_kwargs", {"enable_thinking": False})],
)  # fmt: skip
def test_answers_under_other_settings_are_not_mixed(tmp_path, setting, value):
    file = parquet(tmp_path / "sums.parquet", rows())
    benchmarks = read_benchmarks([f"sums={file}"], tmp_path, 1)
    run(tmp_path, Calculator(), benchmarks)
    before = (tmp_path / "out" / "model" / "settings.json").read_bytes()
    with pytest.raises(EvaluationError, match=f"holds answers with {setting}=.* now {setting} is {value}"):
        run(tmp_path, Calculator(**{setting: value}), benchmarks)
    assert (tmp_path / "out" / "model" / "settings.json").read_bytes() == before


def test_answers_to_another_prompt_or_by_other_weights_are_not_mixed(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    file = parquet(tmp_path / "sums.parquet", rows())
    run(tmp_path, Calculator(), read_benchmarks([f"sums={file}"], tmp_path, 1), model)
    parquet(file, rows(system="Think twice."))
    with pytest.raises(EvaluationError, match="sums with other questions or another prompt"):
        run(tmp_path, Calculator(), read_benchmarks([f"sums={file}"], tmp_path, 1), model)
    parquet(file, rows())
    os.utime(model / "model.safetensors")  # trained again, under the same name
    with pytest.raises(EvaluationError, match="holds answers with weights="):
        run(tmp_path, Calculator(), read_benchmarks([f"sums={file}"], tmp_path, 1), model)


def test_a_prompt_that_is_too_long_counts_as_wrong_and_is_told(tmp_path):
    file = parquet(tmp_path / "sums.parquet", rows([*QUESTIONS, ("1 + " * 100 + "1?", "101")]))
    engine = Calculator()
    said = run(tmp_path, engine, read_benchmarks([f"sums={file}"], tmp_path, 1))
    assert ("sums", 3, 0) not in engine.asked
    assert any("1 of 4 prompts of sums have more than --max-prompt 64 tokens" in text for text in said)
    assert [answer["acc"] for answer in lines(tmp_path / "out" / "model" / "sums.jsonl")] == [1.0, 1.0, 1.0, 0.0]
    assert "pass@1 75.00" in said[-1]


def test_an_answer_that_does_not_come_is_no_wrong_answer(tmp_path):
    class Silent(Calculator):
        def ask(self, task: Task, say) -> None:
            super().ask(Task(task.name, task.path, task.rows[1:], task.answers, task.seed), say)

    file = parquet(tmp_path / "sums.parquet", rows())
    benchmarks = read_benchmarks([f"sums={file}"], tmp_path, 1)
    with pytest.raises(EngineError, match="1 answers of model are missing"):
        run(tmp_path, Silent(), benchmarks)
    assert not (tmp_path / "out" / "model" / "sums.jsonl").exists()
    last = Calculator()
    run(tmp_path, last, benchmarks)
    assert last.asked == [("sums", 0, 0)]


WRITE_ANSWERS = r"""
import sys
from pathlib import Path
from cw_plugin.evaluation.store import Journal

journal = Journal(Path(sys.argv[1]))
for index in range(200):
    journal.write({"benchmark": sys.argv[2], "index": index, "sample": 0, "output": "ü\u2028" * 5000})
"""


def test_processes_journal_beside_each_other(tmp_path):
    answers = Answers(tmp_path)
    writers = [subprocess.Popen([sys.executable, "-c", WRITE_ANSWERS, answers.journal, name]) for name in "abc"]
    while any(writer.poll() is None for writer in writers):
        answers.poll()  # while they write
    assert answers.poll() == 600 == Answers(tmp_path).poll()
    assert {answer["output"] for answer in answers.graded.values()} == {"ü\u2028" * 5000}


def test_two_evaluations_do_not_write_to_one_folder(tmp_path):
    class Nested(Calculator):
        def ask(self, task: Task, say) -> None:
            with pytest.raises(EvaluationError, match="Another evaluation is writing"):
                run(tmp_path, Calculator(), benchmarks)
            super().ask(task, say)

    benchmarks = read_benchmarks([f"sums={parquet(tmp_path / 'sums.parquet', rows())}"], tmp_path, 1)
    run(tmp_path, Nested(), benchmarks)


def test_what_an_engine_starts_ends_with_it(tmp_path):
    log = tmp_path / "log"
    code = (
        "import sys; from pathlib import Path; from cw_plugin.evaluation.engine import run_to_log; "
        "run_to_log(['sh', '-c', 'echo $$; exec sleep 600'], Path(sys.argv[1]), print, 60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, log])
    while not (log.exists() and log.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.1)
    started = psutil.Process(int(log.read_text()))
    process.kill()
    process.wait()
    started.wait(timeout=30)


def checkpoint(folder: Path, content: str = "weights") -> Path:
    (folder / "actor" / "huggingface").mkdir(parents=True)
    (folder / "actor" / "model_world_size_1_rank_0.pt").write_text(content)
    return folder


def test_a_runs_folder_means_all_its_checkpoints_by_step(tmp_path):
    said: list[str] = []
    for step in (100, 20):
        checkpoint(tmp_path / "run" / "checkpoints" / f"global_step_{step}")
    (tmp_path / "run" / "checkpoints" / "global_step_5").mkdir()  # verl keeps the folder of a deleted checkpoint
    arguments = [str(tmp_path / "run" / "checkpoints"), str(tmp_path / "run/checkpoints/global_step_100/actor"),
                 str(MODEL)]  # fmt: skip
    models = find_models(arguments, tmp_path / "out", said.append)
    assert [(model.name, model.step) for model in models] == [
        ("run-global_step_20", 20), ("run-global_step_100", 100), ("model", None)
    ]  # fmt: skip
    assert len(said) == 1 and "global_step_5 is left out" in said[0]
    (tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("20")  # 100 is being written
    assert [model.step for model in find_models(arguments[:1], tmp_path / "out", said.append)] == [20]


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
    (found,) = find_models([str(place)], tmp_path / "out", print)
    with pytest.raises(EvaluationError, match=r"LoRA adapter.*merge_and_unload"):
        merged(found, tmp_path / "cache", print)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".log"]


def test_models_of_one_name_have_folders_of_their_own(tmp_path):
    for parent in ("a", "b", "c"):
        checkpoint(tmp_path / parent / "run" / "global_step_1", parent)
    paths = [str(tmp_path / parent / "run") for parent in ("a", "b", "c")]
    together = [model.name for model in find_models(paths[:2], tmp_path / "out", print)]
    assert together[0] == "run-global_step_1" and re.fullmatch("run-[0-9a-f]{6}-global_step_1", together[1])
    checkpoint(tmp_path / "b" / "run" / "global_step_2", "b")
    several = [model.name for model in find_models(paths[:2], tmp_path / "out", print)]
    assert several[1:] == [together[1], together[1][:-1] + "2"]  # a report takes them for checkpoints of one method
    shutil.rmtree(tmp_path / "b" / "run" / "global_step_2")
    taken = tmp_path / "out" / "run-global_step_1"
    taken.mkdir(parents=True)
    (taken / "settings.json").write_text(json.dumps({"checkpoint": str(tmp_path / "a" / "run" / "global_step_1")}))
    assert [model.name for model in find_models(paths[1::-1], tmp_path / "out", print)] == together[::-1]
    (alone,) = find_models(paths[2:], tmp_path / "out", print)
    assert alone.name not in together
    # Folders that are there keep their names, also beside a model of the run's name, and those of an earlier version.
    for name, place in (("run", "model/run"), ("run-global_step_1-abc123", "b/run/global_step_1")):
        (tmp_path / "out" / name).mkdir()
        (tmp_path / "out" / name / "settings.json").write_text(json.dumps({"checkpoint": str(tmp_path / place)}))
    for number, text in enumerate(("{}", "[]", "no JSON")):
        (tmp_path / "out" / f"of another program {number}").mkdir()
        (tmp_path / "out" / f"of another program {number}" / "settings.json").write_text(text)
    again = [model.name for model in find_models(paths[:2], tmp_path / "out", print)]
    assert again == ["run-global_step_1", "run-global_step_1-abc123"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No model is given"),
        (["{tmp}/nothing"], "does not exist"),
        (["~/nothing"], "'~/nothing' does not exist"),  # neither is an override that deletes a key
        (["~nobody-of-this-name/nothing"], "nothing' does not exist"),
        (["~/run/global_step_5"], "run/global_step_5 has no folder actor"),
        (["MODEL", "--data-dir", "~/data", "--benchmarks", "aime24"], "{tmp}/data/aime24/test.parquet does not exist"),
        (["{tmp}"], "neither a config.json nor global_step"),
        (["{tmp}/run/global_step_5"], "has no folder actor"),
        (["{tmp}/run"], "No checkpoint in .* has a folder actor"),
        (["{tmp}/empty"], "has no weights"),
        (["MODEL", "--n", "0"], "--n must be at least 1, got 0|samples per question of s must be at least 1, got 0"),
        (["MODEL", "--top-p", "0"], "--top-p must be above 0 and at most 1, got 0"),
        (["MODEL", "--benchmarks", ""], "No benchmark is given"),
        (["MODEL", "--benchmarks", "aime25"], "Unknown benchmark 'aime25'"),
        (["MODEL", "--benchmarks", "aime24"], "aime24/test.parquet does not exist.*cw-grpo prepare aime24"),
        (["MODEL", "--benchmarks", "s={tmp}/sums.parquet s={tmp}/sums.parquet"], "given twice"),
        (["MODEL", "--benchmarks", "s@0={tmp}/sums.parquet"], "samples per question of s must be at least 1, got 0"),
        (["MODEL", "--benchmarks", "s={tmp}/text.parquet"], "is not a parquet file"),
        (["MODEL", "--benchmarks", "s={tmp}/other.parquet"], "lacks the column.*reward_model"),
        (["MODEL", "--benchmarks", "s={tmp}/string.parquet"], "column prompt of .* is of type string, not a list"),
        (["MODEL", "--benchmarks", "s={tmp}/no-answer.parquet"], "reward_model of .* has no ground_truth"),
        (["MODEL", "--benchmarks", "s=/home/o'brien/sums.parquet"], "No closing quotation; "),
        (["{tmp}/no-system", "--benchmarks", "s={tmp}/sums.parquet", "--max-prompt", "9", "--max-response", "9"],
         "chat template of .* cannot render the prompts of s .no system turn.; prepare"),
        (["MODEL", "--benchmarks", "s={tmp}/sums.parquet"], "model has 2048 positions"),
        (["MODEL", "--benchmarks", "s={tmp}/sums.parquet", "data.nothing=1"], "verl has no setting"),
        (["MODEL", "--benchmarks", "s={tmp}/sums.parquet", "--engine", "lighteval", "--lighteval", "{tmp}/none"],
         "none is not found. Make an environment"),
    ],
)  # fmt: skip
def test_bad_input_ends_in_one_sentence(tmp_path, arguments, message):
    (tmp_path / "run" / "global_step_5").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    (tmp_path / "text.parquet").write_text("no parquet")
    parquet(tmp_path / "sums.parquet", rows())
    pq.write_table(pa.table({"prompt": ["x"], "data_source": ["x"]}), tmp_path / "other.parquet")
    parquet(tmp_path / "string.parquet", [row | {"prompt": "What is 9 + 14?"} for row in rows()])
    parquet(tmp_path / "no-answer.parquet", [row | {"reward_model": {"style": "rule"}} for row in rows()])
    shutil.copytree(MODEL, tmp_path / "no-system")
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    (tmp_path / "no-system" / "chat_template.jinja").write_text(template)
    filled = [text.replace("{tmp}", str(tmp_path)).replace("MODEL", str(MODEL)) for text in arguments]
    if "--benchmarks" not in filled:
        filled += ["--benchmarks", f"s={tmp_path}/sums.parquet"]
    out = tmp_path / "out"
    if "--data-dir" not in filled:
        filled += ["--data-dir", str(tmp_path)]
    result = CliRunner().invoke(app, ["evaluate", *filled, "--out", str(out)], env={"HOME": str(tmp_path)})
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ") and re.search(message.replace("{tmp}", str(tmp_path)), result.stderr)
    assert len(result.stderr.splitlines()) == 1
    assert not list(out.glob("*/*.jsonl"))


def test_the_configuration_is_a_validation_with_these_lengths_and_this_sampling(tmp_path):
    overrides = ["actor_rollout_ref.rollout.val_kwargs.top_k=20", "trainer.n_gpus_per_node=2",
                 "+data.apply_chat_template_kwargs.enable_thinking=False",
                 "actor_rollout_ref.model.custom_chat_template='{{messages}}'",
                 "+reward.custom_reward_function.reward_kwargs.opens_think=True"]  # fmt: skip
    engine = Verl(EvaluationOptions(tmp_path, 1, 0.5, 0.9, 100, 200, 7, overrides))
    assert engine.settings == {"engine": "verl", "temperature": 0.5, "top_p": 0.9, "top_k": 20,
                               "max_prompt_length": 100, "max_response_length": 200,
                               "apply_chat_template_kwargs": {"enable_thinking": False},
                               "custom_chat_template": "{{messages}}", "agent_loop": "single_turn_agent",
                               "dtype": "bfloat16", "reward_kwargs": {"opens_think": True}}  # fmt: skip
    folder = tmp_path / "a name with = and 'quotes'"
    folder.mkdir()
    asked = [{**row, "extra_info": {"benchmark": "sums", "index": i, "sample": 0}} for i, row in enumerate(rows())]
    command = engine._command(Task("name", "/a model", asked, Answers(folder), 1007))
    printed = subprocess.run([*command, "--cfg", "job"], capture_output=True, text=True, check=True).stdout
    config = OmegaConf.create(printed)  # as main_ppo reads it
    assert config.trainer.val_only and config.trainer.val_before_train and config.trainer.resume_mode == "disable"
    assert config.data.max_response_length == 200 and config.actor_rollout_ref.rollout.max_model_len == 300
    assert config.actor_rollout_ref.rollout.val_kwargs.temperature == 0.5
    assert config.actor_rollout_ref.rollout.seed == 1007
    assert pq.read_table(config.data.val_files).to_pylist()[2]["extra_info"]["index"] == 2
    assert config.trainer.default_local_dir == str(folder)
    assert config.data.train_batch_size == 2 and engine.config.data.train_batch_size != 2


def test_the_reward_manager_journals_what_it_grades(tmp_path):
    from cw_plugin.evaluation.reward import JournalingRewardManager

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    response = tokenizer.encode(r"<think>so</think> $\boxed{23}$", add_special_tokens=False)
    padding = [tokenizer.pad_token_id] * 3
    data = DataProto.from_single_dict(
        {
            "responses": torch.tensor([response + padding]),
            "attention_mask": torch.tensor([[1] * (2 + len(response)) + [0] * 3]),
        }
    )
    for key, value in {
        "data_source": "knoveleng/AMC-23",
        "reward_model": {"ground_truth": "23"},
        "extra_info": {"benchmark": "sums", "index": 4, "sample": 1},
    }.items():
        data.non_tensor_batch[key] = np.array([value], dtype=object)

    async def grade() -> dict:
        config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path)}})
        return await JournalingRewardManager(config, tokenizer, compute_score).run_single(data)

    result = asyncio.run(grade())
    assert result["reward_score"] == 2.0
    (answer,) = Answers(tmp_path).graded.values()
    assert answer == {
        "benchmark": "sums", "index": 4, "sample": 1, "output": r"<think>so</think> $\boxed{23}$",
        "score": 2.0, "acc": 1.0, "format": 1.0, "pred": "23", "tokens": len(response),
    }  # fmt: skip


LIGHTEVAL = shutil.which(os.environ.get("LIGHTEVAL", "lighteval"))


def test_what_else_lighteval_samples_with_is_a_setting(tmp_path):
    """So that answers with and without it are not mixed in one folder."""
    overrides = ["model_parameters.generation_parameters.min_p=0.5", "model_parameters.dtype=float16"]
    machine = ["model_parameters.gpu_memory_utilization=0.5"]
    given, plain = (
        Lighteval(EvaluationOptions(tmp_path, overrides=some), sys.executable, "vllm").settings
        for some in (overrides + machine, machine)
    )
    assert given == plain | {"other_parameters": {"min_p": 0.5, "dtype": "float16"}}
    assert plain["other_parameters"] is None


@pytest.mark.skipif(LIGHTEVAL is None, reason="needs lighteval; LIGHTEVAL names its executable")
def test_lighteval_asks_and_grades_the_same_rows(tmp_path):
    # One gold is what the model will be asked for, the others cannot be said in so few tokens.
    long = [("1 + " * 30 + "1?", "31")]
    for name in ("amc23", "math500"):
        parquet(tmp_path / "data" / name / "test.parquet", rows([*QUESTIONS, *long]))
    out = tmp_path / "out"
    arguments = ["evaluate", str(MODEL), "--engine", "lighteval-accelerate", "--lighteval", str(LIGHTEVAL),
                 "--out", str(out), "--data-dir", str(tmp_path / "data"), "--benchmarks", "amc23 math500@2",
                 "--max-prompt", "192", "--max-response", "16", "--temperature", "1"]  # fmt: skip
    result = CliRunner().invoke(app, arguments, env={"HF_HUB_OFFLINE": "1"})
    assert result.exit_code == 0, result.output
    for name, n in (("amc23", 1), ("math500", 2)):
        answers = lines(out / "model" / f"{name}.jsonl")
        assert [(a["index"], a["sample"]) for a in answers] == [(i, s) for i in range(4) for s in range(n)]
        assert all(0 < a["tokens"] <= 16 and a["score"] == a["acc"] + a["format"] for a in answers)
    settings = json.loads((out / "model" / "settings.json").read_text())
    assert all(path.is_file() for path in MODEL.iterdir())  # lighteval's cache does not go into the model's folder
    assert settings["engine"] == "lighteval accelerate" and settings["benchmarks"]["math500"]["finished"]
