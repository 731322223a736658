"""``cw-grpo evaluate``: models, checkpoints and runs on benchmarks, by verl's own validation.

``OUT/MODEL/BENCHMARK.jsonl`` is verl's dump of the graded answers, ``.yaml`` beside it what they were asked with. verl
starts once for each model (:mod:`cw_plugin.verl_integration.benchmark_trainer`); ``OUT/MODEL/verl.log`` is its output.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from cw_plugin.configs import differences, flat
from cw_plugin.errors import DataError, HostError, OptionsError, first_line
from cw_plugin.evaluation.answers import MACHINE, read_settings
from cw_plugin.evaluation.models import Model, fingerprint, merged, run_module
from cw_plugin.folder_lock import claim
from cw_plugin.verl_integration import BENCHMARK_TRAINER
from cw_plugin.verl_integration.accepted_settings import uses_v1
from cw_plugin.verl_integration.compose import compose

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
    "reward.custom_reward_function.path=pkg://cw_plugin.rewards",
]
PART = ".part"  # in a model's folder: what verl writes until the answers are whole


def evaluate(models: Sequence[Model], benchmarks: Mapping[str, Path], out: Path, overrides: Sequence[str]) -> None:
    """Write ``OUT/MODEL/BENCHMARK.jsonl`` for every model and benchmark that has none, and print pass@1 of each.

    Args:
        benchmarks: name -> parquet file in verl's schema.
        overrides: of verl's configuration.

    Raises:
        OptionsError: an argument cannot be used, or the answers that are there were asked with other settings.
        DataError: a model, a benchmark, or answers cannot be read.
        HostError: verl stopped before the last answer.
    """
    if not models or not benchmarks or not all(re.fullmatch(r"[\w.-]+", name) for name in benchmarks):
        given = f"{len(models)} models, and {', '.join(benchmarks) or 'no benchmark'}"
        raise OptionsError(f"name a model, and benchmarks as NAME or NAME=FILE.parquet; given are {given}")
    config, out = compose([*VALIDATION, *overrides]), out.absolute()
    if not uses_v1(config):
        raise OptionsError("trainer.use_v1=False cannot ask several benchmarks in one start; leave it out")
    questions = {}
    for name, file in benchmarks.items():
        try:
            questions[name] = pq.read_table(file).to_pylist()
        except (OSError, pa.ArrowException) as error:
            cause = first_line(error) if file.exists() else "it does not exist"
            how = "run cw-grpo prepare, or correct --benchmarks or --data-dir"
            raise DataError(f"{file} cannot be read ({cause}); {how}") from None
    with claim(out, "give another folder with --out"):
        for model in models:
            _evaluate_model(model, benchmarks, questions, out, config)


def _evaluate_model(
    model: Model, benchmarks: Mapping[str, Path], questions: Mapping[str, list[Any]], out: Path, config: DictConfig
) -> None:
    """Ask a model the benchmarks that have no answers yet, and print pass@1 of all."""
    path, folder = merged(model, out / ".models"), out / model.name
    unasked = {}
    for name, rows in questions.items():
        settings = _settings(model, path, benchmarks[name], rows, folder, config)
        answers = folder / f"{name}.jsonl"
        if answers.exists():
            _refuse_others(answers, settings)
        else:
            _check_prompts(name, rows, settings)
            unasked[name] = settings
    if unasked:
        samples = config.actor_rollout_ref.rollout.val_kwargs.n
        _ask(folder, unasked, {name: samples * len(questions[name]) for name in unasked})
    for name in questions:
        with (folder / f"{name}.jsonl").open("rb") as lines:
            acc = [json.loads(line)["acc"] for line in lines]
        print(f"{model.name}: {name} pass@1 {sum(acc) / len(acc):.2%} of {len(acc)} answers", flush=True)


def _settings(model: Model, path: str, file: Path, rows: list[Any], folder: Path, config: DictConfig) -> dict[str, Any]:
    """verl's whole configuration for one benchmark; its part ``evaluation`` says what verl's does not."""
    config, part = config.copy(), str(folder / PART)
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    for key, value in {
        "actor_rollout_ref.model.path": path,
        # With less, vLLM would cut responses; verl says when it is more than the model has.
        "actor_rollout_ref.rollout.max_model_len": config.data.max_prompt_length + config.data.max_response_length,
        "data.val_files": str(file),
        "data.train_files": [str(file)] * devices,  # verl wants a batch, though it trains nothing
        "data.train_batch_size": devices,
        "actor_rollout_ref.actor.ppo_mini_batch_size": devices,
        "trainer.default_local_dir": part,
        "trainer.validation_data_dir": part,
        "hydra": {"run": {"dir": part}, "output_subdir": None},
    }.items():
        OmegaConf.update(config, key, value, force_add=True)
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    asked = {
        "checkpoint": str(model.place),
        "step": model.step,
        "weights": fingerprint(Path(model.place) if model.step is None else Path(model.place, "actor")),
        "questions": hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest(),
        "samples": config.actor_rollout_ref.rollout.val_kwargs.n,
        "files": {  # adapters, reward functions and the like may change under one name
            key: fingerprint(Path(value))
            for key, value in flat(resolved, MACHINE).items()
            if key.endswith(("path", "file")) and value and os.path.exists(str(value))
        },
    }
    return {"evaluation": asked, **resolved}


def _refuse_others(answers: Path, settings: dict[str, Any]) -> None:
    before = read_settings(answers.with_suffix(".yaml"))
    for key, (was, now) in differences(before, settings, MACHINE).items():
        raise OptionsError(
            f"{answers} was asked with {key}={was}, and now it is {now}; use the same settings, another folder "
            "(--out), or another name for the model (NAME=FOLDER)"
        )


def _check_prompts(benchmark: str, rows: Sequence[Any], settings: dict[str, Any]) -> None:
    """Raise DataError where the chat template does not render a prompt, and OptionsError where verl would cut one."""
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    model, data = settings["actor_rollout_ref"]["model"], settings["data"]
    place, limit = model["tokenizer_path"] or model["path"], data["max_prompt_length"]
    kwargs = {"add_generation_prompt": True, "tokenize": False, **data["apply_chat_template_kwargs"]}
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=model["trust_remote_code"])
        prompts = [row["prompt"] for row in rows]
        texts = tokenizer.apply_chat_template(prompts, chat_template=model["custom_chat_template"], **kwargs)
        longest = max(len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"])
    except (OSError, ValueError, KeyError, TypeError, TemplateError) as error:
        raise DataError(
            f"the chat template of {place} cannot render the prompts of {benchmark} ({first_line(error)}); set "
            "actor_rollout_ref.model.custom_chat_template, or use cw-grpo prepare --prompt none (no system turn)"
        ) from None
    if longest > limit:
        raise OptionsError(f"{benchmark} has a prompt of {longest} tokens; raise data.max_prompt_length={limit}")


def _ask(folder: Path, unasked: Mapping[str, dict[str, Any]], wanted: Mapping[str, int]) -> None:
    """Have verl answer and grade benchmarks in one start.

    Args:
        folder: the model's; ``BENCHMARK.jsonl`` appears there as soon as the benchmark's answers are whole.
        unasked: benchmark -> its settings. They differ in the questions alone.
        wanted: benchmark -> how many answers make it whole.
    """
    part, log = folder / PART, folder / "verl.log"
    shutil.rmtree(part, ignore_errors=True)  # of an evaluation that was interrupted
    part.mkdir(parents=True)
    tasks = {}
    for name, settings in unasked.items():
        # Without answers beside it, it says that they are missing.
        (folder / f"{name}.yaml").write_text(OmegaConf.to_yaml(settings), encoding="utf-8")
        file, result = settings["data"]["val_files"], str(folder / f"{name}.jsonl")
        tasks[name] = {"file": file, "dump": str(part / name), "answers": wanted[name], "result": result}
    config = OmegaConf.create(next(iter(unasked.values())))
    OmegaConf.update(config, "evaluation", {"benchmarks": tasks}, merge=False)
    OmegaConf.update(config, "trainer.v1.trainer_mode", BENCHMARK_TRAINER)
    OmegaConf.save(config, part / "start.yaml")
    print(f"{folder.name}: asking {', '.join(unasked)}; verl's output: {log}", flush=True)
    run_module("verl.trainer.main_ppo", "--config-path", str(part), "--config-name", "start", log=log)
    for name, task in tasks.items():
        if not Path(task["result"]).exists():  # verl leaves out a response that the reward function fails on
            graded = Path(task["dump"], "0.jsonl").read_bytes().count(b"\n")
            raise HostError(f"verl graded {graded} of {wanted[name]} answers to {name}; see {log}, and start again")
    shutil.rmtree(part)
