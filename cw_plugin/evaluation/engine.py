"""The interface of an engine, and verl's validation as an engine."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from cw_plugin.errors import EngineError, EvaluationError, last_line
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

    def close(self) -> None:
        """Free the engine's resources."""


class Verl:
    """verl's own validations, one after another in the same Ray.

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
        with _output_to(log), _progress(task, log, say):
            import ray
            from verl.trainer.main_ppo import run_ppo
            from verl.trainer.ppo.utils import need_critic, need_reference_policy
            from verl.utils.config import validate_config
            from verl.utils.device import auto_set_device

            from cw_plugin.evaluation.runner import Runner

            config = self._configuration(task)
            auto_set_device(config)
            validate_config(config, need_reference_policy(config), need_critic(config))
            try:
                run_ppo(config, task_runner_class=Runner)
            except ray.exceptions.RayError as error:
                raise EngineError(
                    f"verl stopped while it evaluated {task.name} ({last_line(error)}). Graded answers are kept; give "
                    f"the same command again to go on. verl's output: {log}"
                ) from error
            self._wait_until_free()

    def _configuration(self, task: Task) -> Any:
        from omegaconf import OmegaConf, open_dict

        file = str(task.folder / "asked.parquet")
        pq.write_table(pa.Table.from_pylist(task.rows), file)
        config = self.config.copy()
        with open_dict(config):
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
            }.items():
                OmegaConf.update(config, key, value, force_add=True)
        return config

    def _wait_until_free(self, seconds: float = 120) -> None:
        """Wait until the validation's actors have ended; the next validation needs their names and devices."""
        import ray

        deadline = time.monotonic() + seconds
        while ray.util.list_named_actors() or _devices(ray.available_resources()) < self.devices:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"verl did not free its devices within {seconds:.0f} s; give the same command again to go on."
                )
            time.sleep(0.5)

    def close(self) -> None:
        """Stop Ray, or disconnect from a cluster that was already running."""
        if "ray" in sys.modules:
            with _output_to(Path(os.devnull)):  # it repeats the logs
                sys.modules["ray"].shutdown()


def _devices(resources: dict[str, float]) -> float:
    return resources.get("GPU", 0) + resources.get("NPU", 0)


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Send the output of this process and of Ray to ``log``; only ``say`` writes to the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


@contextlib.contextmanager
def _progress(task: Task, log: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Every five seconds, report verl's stage and the number of graded answers, if they changed."""
    done = threading.Event()
    before, start = len(task.answers.graded), log.stat().st_size

    def watch() -> None:
        stages, given = list(STAGES), 0
        say(f"{task.name}: starting verl; all of its output goes to {log}")
        while not done.wait(5):
            with log.open("rb") as stream:
                stream.seek(start)
                text = stream.read().decode(errors="replace") if stages else ""
            while stages and stages[0][0] in text:
                say(f"{task.name}: {stages.pop(0)[1]}")
            graded = task.answers.poll() - before
            if graded > given:
                given = graded
                say(f"{task.name}: {given} of {len(task.rows)} answers graded")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
