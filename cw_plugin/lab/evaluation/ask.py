"""``cw-grpo evaluate``: models, checkpoints and runs on benchmarks, by verl's own validation.

``OUT/MODEL/BENCHMARK.jsonl`` is verl's dump of the graded answers, ``.yaml`` beside it what they were asked with. verl
starts once for each model (:mod:`.validation_trainer`); ``OUT/MODEL/verl.log`` is its output.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from cw_plugin.errors import HostError, OptionsError, first_line
from cw_plugin.hosts.verl.refused_settings import uses_v1
from cw_plugin.lab.compose import compose
from cw_plugin.lab.configs import differences
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.evaluation import TRAINER_MODE
from cw_plugin.lab.evaluation.graded_answers import MACHINE, read_asked_with, read_grades
from cw_plugin.lab.evaluation.models import Model, fingerprint, merged
from cw_plugin.lab.evaluation.module_process import run_module

VALIDATION = [
    "algorithm.adv_estimator=grpo",  # no critic
    "trainer.val_only=True",
    "trainer.logger=[console]",
    "data.max_prompt_length=2048",  # with the next, the 32,768 tokens of open-rs; it also samples like this
    "data.max_response_length=30720",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",  # vLLM needs the memory
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.8",
    "actor_rollout_ref.rollout.seed=42",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0.6",
    "actor_rollout_ref.rollout.val_kwargs.top_p=0.95",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "reward.custom_reward_function.path=pkg://cw_plugin.lab.rewards",
]
PART = ".part"  # in a model's folder: what verl writes until the answers are whole

Question = dict[str, Any]  # a row in verl's schema
Settings = dict[str, Any]  # verl's configuration, nested, and its part "evaluation"


class Task(NamedTuple):
    """One model asked one benchmark."""

    benchmark: str
    questions: list[Question]
    settings: Settings
    result: Path  # the file of its answers


def evaluate(models: Sequence[Model], benchmarks: Mapping[str, Path], out: Path, overrides: Sequence[str]) -> None:
    """Write ``OUT/MODEL/BENCHMARK.jsonl`` for every model and benchmark that has none, and print pass@1 of each.

    A benchmark is the name of a parquet file in verl's schema. The overrides are of verl's configuration.

    Raises:
        OptionsError: an argument cannot be used, or the answers that are there were asked with other settings.
        DataError: a model, a benchmark, or answers cannot be read.
        HostError: verl stopped before the last answer.
    """
    config = compose([*VALIDATION, *overrides])
    if not uses_v1(config):
        raise OptionsError("trainer.use_v1=False cannot ask several benchmarks in one start; leave it out")
    _check_names(models, benchmarks, config)
    questions = {name: _read_questions(file) for name, file in benchmarks.items()}
    of_models = {model.name: _tasks(model, benchmarks, questions, out.absolute(), config) for model in models}
    for name, tasks in of_models.items():
        open_tasks = [task for task in tasks if not task.result.exists()]
        if open_tasks:
            _ask(out.absolute() / name, open_tasks)
        for task in tasks:
            grades, _ = read_grades(task.result)
            acc = [acc for of_question in grades.values() for acc in of_question]
            print(f"{name}: {task.benchmark} pass@1 {sum(acc) / len(acc):.2%} of {len(acc)} answers", flush=True)


def _check_names(models: Sequence[Model], benchmarks: Mapping[str, Path], config: DictConfig) -> None:
    """Raise OptionsError if a model or benchmark is missing, named twice, or named as nothing can be."""
    are_names = all(re.fullmatch(r"[\w.-]+", name) for name in benchmarks)
    if not models or not benchmarks or not are_names:
        seen = f"{len(models)} models, and {', '.join(benchmarks) or 'no benchmark'}"
        raise OptionsError(f"name a model, and benchmarks as NAME or NAME=FILE.parquet; given are {seen}")
    names = [model.name for model in models]
    for name in names:
        if name.lstrip("+~").partition(".")[0] in config:
            problem = f"{name!r} stands among the models, and is a setting of verl"
            raise OptionsError(problem, fix="write overrides after --, as in MODEL -- KEY=VALUE, or use NAME=FOLDER")
        if names.count(name) > 1:
            problem = f"two models are called {name}, and would share a folder of answers"
            raise OptionsError(problem, fix="use NAME=FOLDER")


def _read_questions(file: Path) -> list[Question]:
    try:
        questions: list[Question] = pq.read_table(file).to_pylist()
    except (OSError, pa.ArrowException) as error:
        cause = first_line(error) if file.exists() else "it does not exist"
        how = "run cw-grpo prepare, or correct --benchmarks or --data-dir"
        raise DataError(f"{file} cannot be read ({cause}); {how}") from None
    if not questions or not all(isinstance(question.get("prompt"), list) for question in questions):
        raise DataError(f"{file} has no row, or one without a prompt in messages; write it as cw-grpo prepare does")
    return questions


def _tasks(
    model: Model, benchmarks: Mapping[str, Path], questions: Mapping[str, list[Question]], out: Path, config: DictConfig
) -> list[Task]:
    """What a model is asked, or was asked with the same settings."""
    path, folder = merged(model, out / ".models"), out / model.name
    weights = fingerprint(model.weights)
    tasks = []
    for name, file in benchmarks.items():
        as_text = json.dumps(questions[name], sort_keys=True, default=str)
        evaluation = {  # what verl's settings do not say
            "checkpoint": str(model.place),
            "step": model.step,
            "weights": weights,
            "questions": hashlib.sha256(as_text.encode()).hexdigest(),
            "samples": config.actor_rollout_ref.rollout.val_kwargs.n,
        }
        settings = {"evaluation": evaluation, **_settings(path, str(file), str(folder / PART), config)}
        task = Task(name, questions[name], settings, folder / f"{name}.jsonl")
        if task.result.exists():
            _refuse_others(task)
        tasks.append(task)
    if open_tasks := [task for task in tasks if not task.result.exists()]:
        _check_prompts(open_tasks)
    return tasks


def _settings(path: str, file: str, part: str, config: DictConfig) -> Settings:
    """The whole configuration of verl for a model's path and a benchmark's file; it writes to the folder ``part``."""
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    changed = {
        "actor_rollout_ref.model.path": path,
        # With less, vLLM would cut responses; verl says when it is more than the model has.
        "actor_rollout_ref.rollout.max_model_len": config.data.max_prompt_length + config.data.max_response_length,
        "data.val_files": file,
        "data.train_files": [file] * devices,  # verl wants a batch, though it trains nothing
        "data.train_batch_size": devices,
        "actor_rollout_ref.actor.ppo_mini_batch_size": devices,
        "trainer.default_local_dir": part,
        "trainer.validation_data_dir": part,
        "hydra": {"run": {"dir": part}, "output_subdir": None},
    }
    whole = config.copy()
    for key, value in changed.items():
        OmegaConf.update(whole, key, value, force_add=True)
    return cast("Settings", OmegaConf.to_container(whole, resolve=True))


def _refuse_others(task: Task) -> None:
    """Raise OptionsError if the answers were asked with other settings."""
    before = read_asked_with(task.result.with_suffix(".yaml"))
    changed = differences(before, task.settings, MACHINE)
    if changed:
        key, (was, now) = next(iter(changed.items()))
        raise OptionsError(
            f"{task.result} was asked with {key}={was}, and now it is {now}; use the same settings, another folder "
            "(--out), or another name for the model (NAME=FOLDER)"
        )


def _check_prompts(tasks: Sequence[Task]) -> None:
    """Raise DataError where a model's template does not render a prompt, and OptionsError where verl would cut one."""
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    model, data = tasks[0].settings["actor_rollout_ref"]["model"], tasks[0].settings["data"]
    place, limit = model["tokenizer_path"] or model["path"], data["max_prompt_length"]
    kwargs = {"add_generation_prompt": True, "tokenize": False, **data["apply_chat_template_kwargs"]}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=model["trust_remote_code"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"the tokenizer of {place} cannot be loaded ({first_line(error)}); correct the model's name, or write "
            "overrides of verl after --"
        ) from None
    for name, questions, *_ in tasks:
        prompts = [question["prompt"] for question in questions]
        try:
            texts = tokenizer.apply_chat_template(prompts, chat_template=model["custom_chat_template"], **kwargs)
        except (ValueError, KeyError, TypeError, TemplateError) as error:
            raise DataError(
                f"the tokenizer of {place} cannot render the prompts of {name} ({first_line(error)}); set "
                "actor_rollout_ref.model.custom_chat_template, or use cw-grpo prepare --prompt none (no system turn)"
            ) from None
        longest = max(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
        if longest > limit:
            raise OptionsError(f"{name} has a prompt of {longest} tokens; raise data.max_prompt_length={limit}")


def _ask(folder: Path, tasks: Sequence[Task]) -> None:
    """Have verl answer and grade benchmarks, of whose settings only the questions differ, in one start.

    ``BENCHMARK.jsonl`` appears in the model's folder as soon as the benchmark's answers are whole.
    """
    part, log = folder / PART, folder / "verl.log"
    shutil.rmtree(part, ignore_errors=True)  # of an evaluation that was interrupted
    part.mkdir(parents=True)
    for_trainer = {}  # what validation_trainer.py reads
    for task in tasks:
        # Without answers beside it, it says that they are missing.
        task.result.with_suffix(".yaml").write_text(OmegaConf.to_yaml(task.settings), encoding="utf-8")
        for_trainer[task.benchmark] = {
            "file": task.settings["data"]["val_files"],
            "dump": str(part / task.benchmark),
            "answers": task.settings["evaluation"]["samples"] * len(task.questions),
            "result": str(task.result),
        }
    config = OmegaConf.create(tasks[0].settings)
    OmegaConf.update(config, "evaluation", {"benchmarks": for_trainer}, merge=False)
    OmegaConf.update(config, "trainer.v1.trainer_mode", TRAINER_MODE)
    OmegaConf.save(config, part / "start.yaml")
    print(f"{folder.name}: asking {', '.join(for_trainer)}; verl's output: {log}", flush=True)
    run_module("verl.trainer.main_ppo", "--config-path", str(part), "--config-name", "start", log=log)
    for name, asked in for_trainer.items():
        if not Path(asked["result"]).exists():  # verl leaves out a response that the reward function fails on
            graded = (part / name / "0.jsonl").read_bytes().count(b"\n")
            raise HostError(f"verl graded {graded} of {asked['answers']} answers to {name}; see {log}, and start again")
    shutil.rmtree(part)
