"""Asks models the questions of benchmarks: one ``main_ppo`` for each model, which only validates."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.metadata
import json
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf

from cw_plugin.errors import DataError, HostError, OptionsError, first_line
from cw_plugin.evaluation.benchmarks import Benchmark
from cw_plugin.evaluation.models import Model, find_models, fingerprint, merged
from cw_plugin.files import write_whole
from cw_plugin.reports.evaluations import MACHINE, read_settings
from cw_plugin.settings import differences, flat
from cw_plugin.verl_integration.config import compose
from cw_plugin.verl_integration.prompts import prompt_lengths

VALIDATION = [
    "algorithm.adv_estimator=grpo",  # no critic
    "trainer.val_only=True",
    "trainer.resume_mode=disable",
    "trainer.total_training_steps=1",
    "trainer.logger=[console]",
    "data.max_prompt_length=2048",  # with the next, the 32,768 tokens of open-rs; it also samples like this
    "data.max_response_length=30720",
    "data.filter_overlong_prompts=False",  # verl would leave them out of the mean, silently
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",  # vLLM needs the memory
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.val_kwargs.temperature=0.6",
    "actor_rollout_ref.rollout.val_kwargs.top_p=0.95",
    "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    "reward.custom_reward_function.path=pkg://cw_plugin.rewards",
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=NamingRewardManager",
    "reward.reward_manager.module.path=pkg://cw_plugin.evaluation.reward",
]
PACKAGES = ("cw-plugin", "verl", "torch", "transformers", "math-verify")
TAIL = 12  # lines of verl's output that are shown if it fails


@dataclass
class Work:
    """What one model has to be asked.

    Attributes:
        name: the model's.
        path: its Hugging Face name or folder.
        folder: of its answers.
        settings: benchmark -> verl's configuration, with what is compared beside it as ``evaluation``.
        rows: to ask, in verl's schema; ``extra_info.question`` is "aime24/7".
        samples: question -> how many answers it needs.
        answers: question -> lines of the dump; those that verl is not asked are there already.
    """

    name: str
    path: str
    folder: Path
    settings: dict[str, dict[str, Any]]
    rows: list[dict[str, Any]]
    samples: dict[str, int]
    answers: dict[str, list[bytes]]


def evaluate(
    arguments: Sequence[str],
    benchmarks: Sequence[Benchmark],
    out: Path,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Write ``OUT/MODEL/BENCHMARK.jsonl`` for every model and benchmark that has none.

    All input is checked, and all checkpoints are merged, before the first model is asked.

    Args:
        arguments: as :func:`find_models` takes them.
        overrides: of verl's configuration.

    Raises:
        OptionsError: an argument cannot be used, or the answers that are there were asked with others.
        DataError: a model cannot be read, or its answers cannot.
        HostError: verl stopped before the last answer.
    """
    models = find_models(arguments, say)
    config = compose([*VALIDATION, *overrides])
    rollout = config.actor_rollout_ref.rollout
    rollout.max_model_len = rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        why = "another evaluation writes to it" if isinstance(error, BlockingIOError) else error.strerror
        raise OptionsError(f"{out} cannot be used: {why}; give another folder with --out.") from None
    with lock:
        works = [_work(model, benchmarks, out.absolute(), resolved, say) for model in models]
        for work in works:
            if work.settings:
                _ask(work, say)
            for name in (benchmark.name for benchmark in benchmarks):
                with (work.folder / f"{name}.jsonl").open("rb") as lines:
                    acc = [json.loads(line)["acc"] for line in lines]
                say(f"{work.name}: {name} pass@1 {sum(acc) / len(acc):.2%} ({sum(acc):g} of {len(acc)} answers right)")


def _work(
    model: Model, benchmarks: Sequence[Benchmark], out: Path, config: dict[str, Any], say: Callable[[str], None]
) -> Work:
    options, limit = config["actor_rollout_ref"], config["data"]["max_prompt_length"]
    place = model.place if model.step is None else Path(model.place) / "actor"
    weights = fingerprint(place, trust_remote_code=options["model"]["trust_remote_code"])
    path = merged(model, weights, out / ".models", say)
    asked = {
        "model": model.name,
        "checkpoint": str(model.place),
        "step": model.step,
        "weights": weights,
        "files": {  # adapters, reward functions and the like may change under one name
            key: fingerprint(Path(value), ("*",))
            for key, value in flat(config, MACHINE).items()
            if key.endswith(("path", "file")) and isinstance(value, str) and Path(value).exists()
        },
        "versions": {package: importlib.metadata.version(package) for package in PACKAGES},
    }
    work = Work(model.name, path, out / model.name, {}, [], {}, defaultdict(list))
    left = []
    for benchmark in benchmarks:
        samples = benchmark.samples or options["rollout"]["val_kwargs"]["n"]
        questions = hashlib.sha256(json.dumps(benchmark.rows, sort_keys=True, default=str).encode()).hexdigest()
        settings = {"evaluation": {**asked, "questions": questions, "samples": samples}, **config}
        if (work.folder / f"{benchmark.name}.jsonl").exists():
            _refuse_others(work.folder / f"{benchmark.name}.yaml", settings)
        else:
            work.settings[benchmark.name] = settings
            left.append(benchmark)
    for benchmark, lengths in zip(left, _prompt_lengths(path, left, config), strict=True):
        if (overlong := sum(length > limit for length in lengths)) > 0:
            say(
                f"{model.name}: {overlong} of {len(lengths)} prompts of {benchmark.name} have more than "
                f"data.max_prompt_length={limit} tokens, the longest {max(lengths)}; they count as wrong"
            )
        samples = work.settings[benchmark.name]["evaluation"]["samples"]
        for number, (row, length) in enumerate(zip(benchmark.rows, lengths, strict=True)):
            question = f"{benchmark.name}/{number}"
            work.samples[question] = samples
            if length <= limit:
                work.rows += [{**row, "extra_info": {**(row.get("extra_info") or {}), "question": question}}] * samples
            else:
                prompt, gold = row["prompt"][-1]["content"], row["reward_model"]["ground_truth"]
                unread = {"input": prompt, "output": "", "gts": gold, "score": 0.0, "acc": 0.0, "question": question}
                work.answers[question] = [f"{json.dumps(unread, ensure_ascii=False)}\n".encode()] * samples
    return work


def _refuse_others(file: Path, settings: dict[str, Any]) -> None:
    """Raise OptionsError unless the answers beside ``file`` were asked with these settings."""
    before = read_settings(file)
    # evaluation.samples has the number of each benchmark.
    if differ := differences(before, settings, (*MACHINE, "actor_rollout_ref.rollout.val_kwargs.n")):
        key, (was, now) = next(iter(differ.items()))
        what = f"was asked with {key}={was}, and now it is {now}" if before else f"has no {file.name} of this version"
        raise OptionsError(
            f"{file.with_suffix('.jsonl')} {what}; use the same settings, another folder (--out), or another name "
            "for the model (NAME=FOLDER)."
        )


def _prompt_lengths(path: str, benchmarks: Sequence[Benchmark], config: dict[str, Any]) -> list[list[int]]:
    """Tokens of every prompt of each benchmark, as verl renders it."""
    from jinja2 import TemplateError
    from transformers import AutoConfig, AutoTokenizer

    options, rollout = config["actor_rollout_ref"]["model"], config["actor_rollout_ref"]["rollout"]
    trust = options["trust_remote_code"]
    try:
        model = AutoConfig.from_pretrained(path, trust_remote_code=trust, **options["override_config"])
        tokenizer = AutoTokenizer.from_pretrained(options["tokenizer_path"] or path, trust_remote_code=trust)
        tokenizer.chat_template = options["custom_chat_template"] or tokenizer.chat_template  # as verl does
        template = config["data"]["apply_chat_template_kwargs"]
        lengths = [prompt_lengths(tokenizer, [row["prompt"] for row in b.rows], template) for b in benchmarks]
    except (OSError, ValueError, TemplateError) as error:
        raise DataError(
            f"The prompts cannot be rendered with the model and the chat template of {path} "
            f"({first_line(error)}); give a whole model, set actor_rollout_ref.model.custom_chat_template, or prepare "
            "other prompts (cw-grpo prepare --prompt none has no system turn)."
        ) from None
    positions = getattr(model.get_text_config(), "max_position_embeddings", None) or rollout["max_model_len"]
    if positions < rollout["max_model_len"] and "hf_overrides" not in (rollout["engine_kwargs"].get("vllm") or {}):
        raise OptionsError(
            f"{path} has {positions} positions, less than the {rollout['max_model_len']} of data.max_prompt_length and "
            "data.max_response_length together; lower one of them."
        )
    return lengths


def _ask(work: Work, say: Callable[[str], None]) -> None:
    """Have verl answer and grade, and keep the benchmarks whose answers are all there."""
    part, log = work.folder / ".part", work.folder / "verl.log"
    shutil.rmtree(part, ignore_errors=True)  # of an evaluation that was interrupted
    part.mkdir(parents=True)
    for name, settings in work.settings.items():  # without answers, it says that they are missing
        (work.folder / f"{name}.yaml").write_text(OmegaConf.to_yaml(settings), encoding="utf-8")
    if work.rows:
        say(f"{work.name}: {len(work.rows)} answers to {', '.join(work.settings)}; verl's output: {log}")
        if code := run_to_log(_command(work, part), log):
            end = "".join(log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-TAIL:])
            raise HostError(
                f"verl ended with exit code {code} while it asked {work.name}. Its output, {log}, ends:\n{end}"
            )
        with (part / "0.jsonl").open("rb") as lines:
            for line in lines:
                work.answers[json.loads(line)["question"]].append(line)
    lacking = {question.partition("/")[0] for question, n in work.samples.items() if len(work.answers[question]) != n}
    for name in work.settings.keys() - lacking:
        whole = b"".join(b"".join(work.answers[q]) for q in work.samples if q.startswith(f"{name}/"))
        write_whole(work.folder / f"{name}.jsonl", whole.decode())
    if lacking:
        raise HostError(f"verl has not graded every answer to {', '.join(sorted(lacking))}; {log} says why. Try again.")
    shutil.rmtree(part)


def _command(work: Work, part: Path) -> list[str]:
    """Write the rows and the configuration, which may hold any path, and return the command that reads them."""
    asked, config = part / "asked.parquet", OmegaConf.create(next(iter(work.settings.values())))
    try:
        pq.write_table(pa.Table.from_pylist(work.rows), asked)
    except pa.ArrowException as error:
        raise DataError(f"The benchmarks' columns do not fit together ({error}); ask one after the other.") from None
    del config["evaluation"]
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    reward = config.reward.custom_reward_function
    kwargs = {**(reward.get("reward_kwargs") or {})}
    if reward.path == "pkg://cw_plugin.rewards":
        kwargs.setdefault("model_path", work.path)
    for key, value in {
        "data.train_files": [str(asked)]
        * -(-devices // len(work.rows)),  # verl wants a batch, though it trains nothing
        "data.val_files": str(asked),
        "data.train_batch_size": devices,
        "actor_rollout_ref.actor.ppo_mini_batch_size": devices,
        "actor_rollout_ref.model.path": work.path,
        "actor_rollout_ref.rollout.val_kwargs.n": 1,  # each sample has a row of its own
        "reward.custom_reward_function.reward_kwargs": kwargs,
        "trainer.experiment_name": work.name,
        "trainer.default_local_dir": str(part),
        "trainer.validation_data_dir": str(part),
        "hydra": {"run": {"dir": str(part)}, "output_subdir": None},
    }.items():
        OmegaConf.update(config, key, value)
    OmegaConf.save(config, part / "verl.yaml")
    where = ["--config-path", str(part), "--config-name", "verl", "hydra/job_logging=stdout"]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *where]


def run_to_log(command: Sequence[str], log: Path) -> int:
    """Run ``command``, append its output to ``log``, and return its exit code.

    The kernel kills it if this process ends first; otherwise it would go on with the GPUs.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=_end_with_the_parent)
    try:
        return process.wait()
    finally:
        process.kill()
        process.wait()


def _end_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
