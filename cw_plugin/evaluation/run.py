"""Asks every model every question that has no answer yet."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cw_plugin.errors import EngineError, EvaluationError, first_line
from cw_plugin.evaluation.benchmarks import Benchmark
from cw_plugin.evaluation.engine import CUSTOM_TEMPLATE, TEMPLATE, Engine, EvaluationOptions, Task
from cw_plugin.evaluation.models import Model, find_models, merged
from cw_plugin.evaluation.store import Answers, Journal, Settings
from cw_plugin.verl_integration.prompts import prompt_lengths

UNREAD = {"output": "", "score": 0.0, "acc": 0.0, "format": 0.0, "pred": "", "tokens": 0}
PACKAGES = ("cw-plugin", "verl", "vllm", "torch", "transformers", "ray", "math-verify")


def evaluate(
    arguments: Sequence[str],
    benchmarks: list[Benchmark],
    engine: Engine,
    options: EvaluationOptions,
    say: Callable[[str], None],
) -> None:
    """Give every model in ``arguments`` all its answers to ``benchmarks``, under ``options.out``.

    All input is checked, and all checkpoints are merged, before the first model starts.

    Raises:
        EvaluationError: the input cannot be evaluated.
        EngineError: the engine stopped; the answers graded before are kept.
    """
    with _alone_in(options.out):
        models = find_models(arguments, options.out, say, engine.trust_remote_code)
        for work in [_Work(model, benchmarks, engine, options, say) for model in models]:
            work.run()


@contextlib.contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Lock the folder: two evaluations in one folder would ask everything twice."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise EvaluationError(f"Cannot write to {out} ({error}); give another folder with --out.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvaluationError(
                f"Another evaluation is writing to {out}; wait for it, or give another folder with --out."
            ) from None
        yield


class _Work:
    """One model: its answers so far, and the questions that remain.

    Raises:
        EvaluationError: the model cannot be read, is too small for the lengths, or has answers under other settings.
    """

    def __init__(
        self,
        model: Model,
        benchmarks: list[Benchmark],
        engine: Engine,
        options: EvaluationOptions,
        say: Callable[[str], None],
    ):
        self.model, self.benchmarks, self.engine, self.options, self.say = model, benchmarks, engine, options, say
        self.path = merged(model, (options.out / ".models").absolute(), say)
        self.answers = Answers((options.out / model.name).absolute())
        self.settings = Settings(
            self.answers.folder,
            {
                "model": self.path,
                "checkpoint": model.checkpoint,
                "weights": model.weights,
                "step": model.step,
                "n": options.n,
                **engine.settings,
                "seed": options.seed,
                "overrides": options.overrides,
                "versions": _versions(),
            },
            ("checkpoint", "weights", *engine.settings),
            benchmarks,
        )
        self.lengths = self._prompt_lengths()

    def _prompt_lengths(self) -> dict[str, list[int]]:
        """Tokens of every prompt, as verl renders it, by benchmark."""
        from jinja2 import TemplateError
        from transformers import AutoConfig, AutoTokenizer

        trust = self.engine.trust_remote_code
        try:
            model = AutoConfig.from_pretrained(self.path, trust_remote_code=trust)
            tokenizer = AutoTokenizer.from_pretrained(self.path, trust_remote_code=trust)
        except (OSError, ValueError) as error:
            raise EvaluationError(f"The model {self.path} cannot be read ({first_line(error)}).") from error
        tokenizer.chat_template = self.engine.settings.get(CUSTOM_TEMPLATE) or tokenizer.chat_template  # as verl does
        if tokenizer.chat_template is None:
            raise EvaluationError(
                f"The tokenizer of {self.path} has no chat template; set actor_rollout_ref.model.{CUSTOM_TEMPLATE}."
            )
        prompt, response = (self.engine.settings[f"max_{part}_length"] for part in ("prompt", "response"))
        positions = getattr(model.get_text_config(), "max_position_embeddings", None)
        if positions is not None and positions < prompt + response:
            raise EvaluationError(
                f"{self.model.name} has {positions} positions, less than --max-prompt {prompt} and --max-response "
                f"{response} together; lower one of them."
            )
        lengths = {}
        for benchmark in self.benchmarks:
            chats = [row["prompt"] for row in benchmark.rows]
            try:
                lengths[benchmark.name] = prompt_lengths(tokenizer, chats, self.engine.settings[TEMPLATE])
            except (ValueError, TemplateError) as error:
                raise EvaluationError(
                    f"The chat template of {self.path} cannot render the prompts of {benchmark.name} "
                    f"({first_line(error)}); prepare the questions with another prompt (cw-grpo prepare --prompt none "
                    f"has no system turn), or set actor_rollout_ref.model.{CUSTOM_TEMPLATE}."
                ) from error
        return lengths

    def run(self) -> None:
        """Ask what is missing, and write the benchmarks' files."""
        unfinished = [b for b in self.benchmarks if next(self.answers.missing(b), None) is not None]
        self.settings.note_interruption(unfinished, self.answers.counts())
        self.settings.write(dict.fromkeys(unfinished, False))  # before the first answer is there
        self._answer_overlong()
        asked = [
            {**benchmark.rows[index], "extra_info": {"benchmark": benchmark.name, "index": index, "sample": sample}}
            for benchmark in self.benchmarks
            for _, index, sample in self.answers.missing(benchmark)
        ]
        before = len(self.answers.graded)
        if asked:
            self.say(f"{self.model.name}: {len(asked)} answers to generate, {before} already exist")
            self.settings.write(dict.fromkeys(unfinished, False), self.answers.counts())
            # With the previous seed, a new sample of a question could repeat an existing one.
            self.engine.ask(
                Task(self.model.name, self.path, asked, self.answers, self.options.seed + 1000 * before), self.say
            )
            self.answers.poll()
        self._finish()

    def _answer_overlong(self) -> None:
        """Count prompts beyond the maximum length as wrong answers; verl would cut them, or leave them out."""
        limit = self.engine.settings["max_prompt_length"]
        for benchmark in self.benchmarks:
            lengths = self.lengths[benchmark.name]
            overlong = [key for key in self.answers.missing(benchmark) if lengths[key[1]] > limit]
            if not overlong:
                continue
            self.say(
                f"{self.model.name}: {len({key[1] for key in overlong})} of {len(lengths)} prompts of {benchmark.name} "
                f"have more than --max-prompt {limit} tokens, the longest {max(lengths)}; they count as wrong"
            )
            journal = Journal(self.answers.journal)
            for name, index, sample in overlong:
                journal.write({"benchmark": name, "index": index, "sample": sample, **UNREAD})
        self.answers.poll()

    def _finish(self) -> None:
        finished = {benchmark: self.answers.finish(benchmark) for benchmark in self.benchmarks}
        self.settings.write(finished)
        if not all(finished.values()):
            missing = sum(1 for benchmark in self.benchmarks for _ in self.answers.missing(benchmark))
            raise EngineError(
                f"{missing} answers of {self.model.name} are missing. The others are kept; run the same command again "
                f"to ask only for these. The log in {self.answers.folder} shows what went wrong."
            )
        self.answers.drop_journal({benchmark.name for benchmark in self.benchmarks})
        for file in ("asked.parquet", "verl.yaml"):
            (self.answers.folder / file).unlink(missing_ok=True)
        for benchmark in self.benchmarks:
            graded = self.answers.of(benchmark)
            right = sum(answer["acc"] for answer in graded)
            self.say(
                f"{self.model.name}: {benchmark.name} pass@1 {100 * right / len(graded):.2f} "
                f"({right:.0f} of {len(graded)} answers right)"
            )


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
