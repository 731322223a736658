"""TRL's example scripts and notebooks: they run, up to their trainer, as published and with the imports changed."""

import ast
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock, patch

import huggingface_hub
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
    "transformers.PreTrainedModel.from_pretrained",
    "transformers.training_args.is_torch_bf16_gpu_available",
)


def judge(command: Command) -> Verdict | None:
    """None for a program that does not train with prompt groups."""
    source = _source(command.folder / command.script)
    if not re.search(r"\b\w*GRPOTrainer\(", source):
        return None
    (command.folder / command.script).with_suffix(".py").write_text(source, encoding="utf-8")
    # The batch sizes of some expect several processes, and some do not train on the first command that they show.
    for processes, arguments in product((1, 8), _shown_arguments(source, command.script.name)):
        plain = _start(command, arguments, processes, {})
        if not plain.ended:
            break
    if plain.ended:  # most often, because the hub cannot be asked
        is_upstream = plain.ended.startswith("ImportError: cannot import name")
        return Verdict(Outcome.BROKEN if is_upstream else Outcome.UNKNOWN, plain.ended)
    changed = _start(command, arguments, processes, CHANGED)
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


def _start(command: Command, arguments: list[str], processes: int, changed: dict[str, type]) -> Start:
    program = str(command.script.with_suffix("")).replace("/", ".")
    with _up_to_the_trainer(processes), patch.multiple(trl, **changed) if changed else nullcontext():
        return start(command, program, arguments, _look)


def _shown_arguments(source: str, name: str) -> list[list[str]]:
    """Those of each command that a program's docstring shows, or none."""
    text = (ast.get_docstring(ast.parse(source)) or "").replace("\\\n", " ")
    commands = [line.partition(name)[2] for line in text.splitlines() if name in line]
    return [shlex.split(given.strip("`"), comments=True) for given in commands] or [[]]


@contextmanager
def _up_to_the_trainer(processes: int) -> Iterator[None]:
    """While a program starts: what it gives to its trainer is kept, and it ends."""

    def stop(self: Any, *given: Any, **named: Any) -> None:
        reached.update(trainer=type(self).__name__, args=named.get("args"))
        raise Reached

    with ExitStack() as stack:
        for name in MOCKED:
            stack.enter_context(patch(name, MagicMock()))
        stack.enter_context(patch.dict(sys.modules, {"trl.experimental.openreward": MagicMock()}))  # asks its catalog
        tasks = Path(stack.enter_context(TemporaryDirectory()))
        (tasks / "tasks" / "one").mkdir(parents=True)
        (tasks / "tasks" / "one" / "task.toml").touch()
        huggingface_hub.snapshot_download.return_value = str(tasks)
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
