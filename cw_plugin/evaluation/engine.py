"""The interface of an engine, and verl's validation as an engine."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.errors import EngineError, EvaluationError
from cw_plugin.evaluation.store import Answers

# What main_ppo prints before the first answer, and what to show instead.
STAGES = (("dataset len:", "loading the model"), ("LLMServerManager: [", "vLLM server is up"),
          ("ready to fit", "asking"))  # fmt: skip

TEMPLATE = "apply_chat_template_kwargs"  # verl's key for the arguments of a chat template
CUSTOM_TEMPLATE = "custom_chat_template"  # verl's key for a template that replaces the model's

# These make verl only validate.
VALIDATION = [
    "algorithm.adv_estimator=grpo",  # no critic
    "algorithm.use_kl_in_reward=False",
    "trainer.val_only=True",
    "trainer.val_before_train=True",
    "trainer.resume_mode=disable",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.total_training_steps=1",
    "trainer.project_name=evaluation",
    "trainer.logger=[console]",
    "data.validation_shuffle=False",
    "data.filter_overlong_prompts=False",  # verl would leave them out silently, and the mean would not include them
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",  # vLLM needs the memory
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
    "actor_rollout_ref.actor.use_dynamic_bsz=True",
    "actor_rollout_ref.actor.use_kl_loss=False",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=1",
    "actor_rollout_ref.rollout.val_kwargs.n=1",  # each sample has its own row
    "reward.custom_reward_function.path=pkg://cw_plugin.rewards",
    "reward.custom_reward_function.name=compute_score",
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=JournalingRewardManager",
    "reward.reward_manager.module.path=pkg://cw_plugin.evaluation.reward",
]


@dataclass(frozen=True)
class EvaluationOptions:
    """The options of the command line; see ``cw-grpo evaluate --help``."""

    out: Path
    n: int = 1
    temperature: float = 0.6
    top_p: float = 0.95
    max_prompt: int = 2048
    max_response: int = 30720
    seed: int = 42
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, value, least in (
            ("--n", self.n, 1), ("--max-prompt", self.max_prompt, 1), ("--max-response", self.max_response, 1),
            ("--temperature", self.temperature, 0), ("--seed", self.seed, 0),
        ):  # fmt: skip
            if value < least:
                raise EvaluationError(f"{name} must be at least {least}, got {value}.")
        if not 0 < self.top_p <= 1:
            raise EvaluationError(f"--top-p must be above 0 and at most 1, got {self.top_p}.")


@dataclass(frozen=True)
class Task:
    """Rows that one model must answer.

    Attributes:
        name: the model's.
        path: its Hugging Face folder or name.
        rows: rows in verl's schema, whose ``extra_info`` has benchmark, index and sample.
        answers: receives the graded answers.
        seed: of the engine.
    """

    name: str
    path: str
    rows: list[dict[str, Any]]
    answers: Answers
    seed: int

    @property
    def folder(self) -> Path:
        """The folder of the model's answers."""
        return self.answers.folder


class Engine(Protocol):
    """Generates and grades answers.

    Attributes:
        settings: everything that affects the answers and their grades; answers of other settings are kept apart.
        trust_remote_code: whether a model's own code may run.
    """

    settings: dict[str, Any]
    trust_remote_code: bool

    def ask(self, task: Task, say: Callable[[str], None]) -> None:
        """Generate an answer to each row, grade it, and write it to the journal.

        Raises:
            EngineError: the engine stopped before the last answer.
        """


class Verl:
    """verl's own validation: one ``main_ppo`` for each model.

    Raises:
        OptionsError: verl's configuration does not accept the overrides.
    """

    def __init__(self, options: EvaluationOptions):
        from omegaconf import OmegaConf

        from cw_plugin.verl_integration.config import compose

        rollout = "actor_rollout_ref.rollout"
        longest = options.max_prompt + options.max_response
        self.config = compose(
            [
                *VALIDATION,
                f"data.max_prompt_length={options.max_prompt}",
                f"data.max_response_length={options.max_response}",
                f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={longest}",
                f"{rollout}.max_model_len={longest}",
                f"{rollout}.val_kwargs.temperature={options.temperature}",
                f"{rollout}.val_kwargs.top_p={options.top_p}",
                f"{rollout}.val_kwargs.do_sample={options.temperature > 0}",
                *options.overrides,
            ]
        )
        rollout_config, data = self.config.actor_rollout_ref.rollout, self.config.data
        sampling = rollout_config.val_kwargs
        reward = self.config.reward.custom_reward_function
        self.settings = {
            "engine": "verl",
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_prompt_length": data.max_prompt_length,
            "max_response_length": data.max_response_length,
            TEMPLATE: OmegaConf.to_container(data.apply_chat_template_kwargs),
            CUSTOM_TEMPLATE: self.config.actor_rollout_ref.model.get(CUSTOM_TEMPLATE),
            "agent_loop": rollout_config.agent.default_agent_loop,
            "dtype": rollout_config.dtype,
            "reward_kwargs": OmegaConf.to_container(reward.get("reward_kwargs") or OmegaConf.create()),
        }
        self.trust_remote_code = self.config.actor_rollout_ref.model.trust_remote_code
        self.devices = self.config.trainer.nnodes * self.config.trainer.n_gpus_per_node

    def ask(self, task: Task, say: Callable[[str], None]) -> None:
        log = task.folder / "verl.log"
        before, start = len(task.answers.graded), log.stat().st_size if log.exists() else 0
        stages, given = list(STAGES), 0

        def news() -> None:
            nonlocal given
            with log.open("rb") as stream:
                stream.seek(start)
                text = stream.read().decode(errors="replace") if stages else ""
            while stages and stages[0][0] in text:
                say(f"{task.name}: {stages.pop(0)[1]}")
            graded = task.answers.poll() - before
            if graded > given:
                given = graded
                say(f"{task.name}: {given} of {len(task.rows)} answers graded")

        say(f"{task.name}: starting verl; all of its output goes to {log}")
        code = run_to_log(self._command(task), log, news, 5)
        news()
        if code != 0:
            raise EngineError(
                f"verl stopped while it evaluated {task.name}. Graded answers are kept; give the same command again to "
                f"go on. verl's output: {log}"
            )

    def _command(self, task: Task) -> list[str]:
        """Write the questions and the configuration, which may hold any path, and return the command that reads it."""
        from omegaconf import OmegaConf

        file = str(task.folder / "asked.parquet")
        pq.write_table(pa.Table.from_pylist(task.rows), file)
        config = OmegaConf.create(OmegaConf.to_container(self.config))  # not a struct
        for key, value in {
            "data.train_files": file,
            "data.val_files": file,
            "data.train_batch_size": self.devices,
            "actor_rollout_ref.actor.ppo_mini_batch_size": self.devices,
            "actor_rollout_ref.model.path": task.path,
            "actor_rollout_ref.rollout.seed": task.seed,
            "reward.custom_reward_function.reward_kwargs.model_path": task.path,
            "trainer.experiment_name": task.name,
            "trainer.default_local_dir": str(task.folder),
            "hydra": {"run": {"dir": str(task.folder)}, "output_subdir": None},
        }.items():
            OmegaConf.update(config, key, value)
        OmegaConf.save(config, task.folder / "verl.yaml")
        where = ["--config-path", str(task.folder), "--config-name", "verl", "hydra/job_logging=stdout"]
        return [sys.executable, "-m", "verl.trainer.main_ppo", *where]


def run_to_log(command: Sequence[str], log: Path, news: Callable[[], None], seconds: float, **options: Any) -> int:
    """Run ``command``, append its output to ``log``, and return its exit code.

    The kernel kills it if this process is killed; otherwise it would go on with the GPUs.

    Args:
        news: called every so many ``seconds``.
        options: of :class:`subprocess.Popen`.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=_end_with_the_parent, **options
        )
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(seconds)
            news()
    finally:
        process.kill()
        process.wait()


def _end_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
