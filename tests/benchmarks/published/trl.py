"""TRL's example scripts and notebooks: they run, up to their trainer, as published and with the imports changed."""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import trl
from captured_commands import Command
from transformers import TrainingArguments
from trl.experimental import async_grpo

from cw_plugin.errors import CWGRPOError
from cw_plugin.hosts.transformers_trainer import check_loss
from cw_plugin.hosts.trl import CWGRPOConfig, CWGRPOTrainer
from published import Outcome, Verdict
from published.programs import Reached, Start, reached, start, verdict

SCRIPTS = ("examples/**/*.py", "examples/**/*.ipynb")
CHANGED = {"GRPOConfig": CWGRPOConfig, "GRPOTrainer": CWGRPOTrainer}
# What needs the hub or a GPU.
MOCKED = (
    "huggingface_hub.login",
    "huggingface_hub.notebook_login",
    "huggingface_hub.snapshot_download",
    "transformers.AutoTokenizer.from_pretrained",
    "transformers.AutoProcessor.from_pretrained",
    "transformers.AutoConfig.from_pretrained",
    "transformers.AutoModelForCausalLM.from_pretrained",
    "transformers.AutoModelForImageTextToText.from_pretrained",
    "transformers.training_args.is_torch_bf16_gpu_available",
)


def judge(command: Command) -> Verdict | None:
    """None for a program that does not train with prompt groups."""
    source = _source(command.folder / command.script)
    if not re.search(r"\b\w*GRPOTrainer\(", source):
        return None
    (command.folder / command.script).with_suffix(".py").write_text(source, encoding="utf-8")
    for processes in (1, 8):  # as the batch sizes of some expect
        plain = _start(command, source, processes, {})
        if not plain.ended:
            break
    if plain.ended:  # most often, because the hub cannot be asked
        return Verdict(Outcome.UNKNOWN, plain.ended)
    changed = _start(command, source, processes, CHANGED)
    if changed.found["trainer"] == async_grpo.AsyncGRPOTrainer.__name__:
        return Verdict(Outcome.NOT_SERVED, "AsyncGRPOTrainer does not derive from GRPOTrainer, so no import changes")
    return verdict(replace(changed, has_method=changed.found["trainer"] == CWGRPOTrainer.__name__))


def _source(file: Path) -> str:
    """Of a program, or of a notebook without its commands to the shell."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".ipynb":
        return text
    cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    lines = "\n".join("".join(cell) for cell in cells).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(("!", "%")))


def _start(command: Command, source: str, processes: int, changed: dict[str, type]) -> Start:
    program = str(command.script.with_suffix("")).replace("/", ".")
    with _up_to_the_trainer(processes), patch.multiple(trl, **changed) if changed else nullcontext():
        return start(command, program, _arguments(source, command.script.name), _look)


def _arguments(source: str, name: str) -> list[str]:
    """Those that the first command of a program's docstring gives to it."""
    text = ast.get_docstring(ast.parse(source)) or ""
    given = text.partition(name)[2].replace("\\\n", " ").partition("\n")[0]
    return shlex.split(given.strip("`"), comments=True)


@contextmanager
def _up_to_the_trainer(processes: int) -> Iterator[None]:
    """While a program starts: what it gives to its trainer is kept, and it ends."""

    def stop(self: Any, *given: Any, **named: Any) -> None:
        reached.update(trainer=type(self).__name__, args=named.get("args"))
        raise Reached

    with ExitStack() as stack:
        for name in MOCKED:
            stack.enter_context(patch(name, MagicMock()))
        dataset = MagicMock()
        dataset.__iter__.side_effect = lambda: iter([dataset, dataset])  # the two splits that some ask for at once
        stack.enter_context(patch("datasets.load_dataset", return_value=dataset))
        stack.enter_context(patch.object(TrainingArguments, "world_size", processes))
        for trainer in (trl.GRPOTrainer, CWGRPOTrainer, async_grpo.AsyncGRPOTrainer):
            stack.enter_context(patch.object(trainer, "__init__", stop))
        yield


def _look() -> dict[str, Any]:
    found: dict[str, Any] = {"trainer": reached.get("trainer")}
    try:
        if isinstance(reached.get("args"), trl.GRPOConfig):
            check_loss(reached["args"], has_ligers_loss=hasattr(trl.GRPOTrainer, "compute_liger_loss"))
    except CWGRPOError as error:
        found["refused"] = str(error)
    return found
