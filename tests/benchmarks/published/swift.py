"""ms-swift's commands: its program starts, up to its trainer, as published and with the plugin added."""

import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch

import swift.rlhf_trainers
from captured_commands import Command
from swift.arguments import BaseArguments, rlhf_args
from swift.model import get_model_processor
from swift.pipelines.train import rlhf, sft
from swift.pipelines.train.rlhf import SwiftRLHF
from swift.rlhf_trainers import GRPOTrainer
from transformers import TrainingArguments

from cw_plugin.errors import HostError
from cw_plugin.hosts.transformers_trainer import ReweightingTrainer
from published import Outcome, Verdict
from published.programs import Reached, Start, broken, look_for, reached, start, verdict

SCRIPTS = ("examples/**/*.sh",)
ROOT = Path(__file__).parents[3]
PLUGIN = str(ROOT / "examples" / "swift" / "plugin.py")
PROGRAM = "swift.cli.rlhf"
# In place of a model whose weights would come from a hub, on a machine without a GPU.
SMALL_MODEL = {
    "--model": str(ROOT / "examples" / "cpu" / "model"),
    "--model_type": "qwen2",
    "--template": "qwen2_5",
    "--check_model": "false",
    "--use_cpu": "true",
    "--torch_dtype": "float32",
    "--report_to": "none",
}
# What needs the hub, a server or a GPU.
MOCKED = {
    SwiftRLHF: ("_prepare_dataset", "_prepare_chord_sft_dataset", "prepare_model"),
    rlhf: ("get_model_info_meta", "safe_snapshot_download", "sequence_parallel"),
    sft: ("get_model_parameter_info", "sequence_parallel"),
    rlhf_args: ("get_current_device",),
    swift.rlhf_trainers: ("VLLMClient",),
}


def judge(command: Command) -> Verdict | None:
    """None for a command that does not train with prompt groups."""
    name = os.path.basename(command.words[0])
    kind, *arguments = command.words[1:] or ("",)
    if kind != "rlhf" or _value(arguments, "--rlhf_type") != ["grpo"]:
        return None
    if name == "megatron":
        return _judge_megatron()
    plain = _start(command, arguments)
    if plain.ended:
        return broken(plain)
    plugins = [*_value(arguments, "--external_plugins"), PLUGIN]
    changed = _start(command, [*arguments, "--external_plugins", *plugins])
    return verdict(changed)


def _judge_megatron() -> Verdict:
    """What the plugin says to ``megatron rlhf``, whose program cannot be loaded without a GPU's packages.

    It reads its plugins when it reads its arguments, as ``swift rlhf`` does.
    """
    arguments = "swift.megatron.arguments"
    try:
        with patch.dict(sys.modules, {arguments: ModuleType(arguments)}):
            runpy.run_path(PLUGIN)
    except HostError as error:
        return Verdict(Outcome.REFUSED, str(error))
    return Verdict(Outcome.SILENT, "the plugin is read, and the trainer stays")


def _value(arguments: Sequence[str], flag: str) -> list[str]:
    """What follows a flag, up to the next one."""
    values: list[str] = []
    for word in arguments[arguments.index(flag) + 1 :] if flag in arguments else ():
        if word.startswith("--"):
            break
        values.append(word)
    return values


def _start(command: Command, arguments: Sequence[str]) -> Start:
    small = [word for flag_and_value in SMALL_MODEL.items() for word in flag_and_value]
    with _up_to_the_trainer(command.environment):
        return start(command, PROGRAM, [*arguments, *small], look_for(ReweightingTrainer))


@contextmanager
def _up_to_the_trainer(environment: Mapping[str, str]) -> Iterator[None]:
    """While a program starts: it ends where ms-swift's trainer would begin, after the checks of ours."""
    processes = 1
    for name in ("NPROC_PER_NODE", "NNODES"):
        given = environment.get(name, "")
        processes *= int(given) if given.isdecimal() else 1  # "$WORLD_SIZE" of a scheduler

    def stop(self: Any, *_: object, **__: object) -> None:
        reached["trainer"] = type(self)
        raise Reached

    with ExitStack() as stack:
        for owner, names in MOCKED.items():
            for name in names:
                stack.enter_context(patch.object(owner, name, MagicMock()))
        SwiftRLHF._prepare_dataset.return_value = (MagicMock(), None)
        SwiftRLHF._prepare_chord_sft_dataset.return_value = (MagicMock(), None)
        rlhf.get_model_info_meta.return_value = (MagicMock(), None)
        rlhf.safe_snapshot_download.return_value = SMALL_MODEL["--model"]
        stack.enter_context(patch.object(BaseArguments, "get_model_processor", _without_weights))
        stack.enter_context(patch.object(TrainingArguments, "world_size", processes))
        stack.enter_context(patch.object(GRPOTrainer, "__init__", stop))
        yield


def _without_weights(_: BaseArguments, **__: object) -> tuple[MagicMock, Any]:
    processor = get_model_processor(SMALL_MODEL["--model"], model_type="qwen2", load_model=False)[1]
    processor.model_meta.template = SMALL_MODEL["--template"]  # which a reward model's is looked up by
    return MagicMock(), processor
