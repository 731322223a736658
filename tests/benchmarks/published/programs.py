"""Starts the program of a command in a copy of this process, up to where it would start Ray."""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from io import StringIO
from multiprocessing.connection import Connection
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import ray
from captured_commands import Command

from cw_plugin.errors import CWGRPOError
from published import Outcome, Verdict

SECONDS = 120

# What a program had when it came to Ray, or to its trainer: its ``args``, among others.
reached: dict[str, Any] = {}

_not_here: set[str] = set()  # packages that programs have asked for


class Reached(BaseException):
    """Raised in place of ``ray.init``, or of what else a program should come to."""


@dataclass(frozen=True)
class Start:
    """How far a program came."""

    ended: str = ""  # empty if it came to Ray, else what it ended with
    has_method: bool = False  # whether Ray's workers would get the method from this package
    found: dict[str, Any] = field(default_factory=dict)  # what ``look`` found at the end
    missing: str = ""  # the module that is not installed here
    has_stand_ins: bool = False  # whether a package was not here, so that the end may be of what stands in for it


def program_of(command: Command) -> tuple[str, list[str]] | None:
    """The module that a command starts, by ``-m`` or as a file, and its arguments."""
    words = command.words
    for place, word in enumerate(words):
        if word == "-m" and len(words) > place + 1:
            return words[place + 1], list(words[place + 2 :])
        if word.endswith(".py") and "=" not in word:
            file = os.path.relpath(command.folder / word, command.folder)
            return file.removesuffix(".py").replace("/", "."), list(words[place + 1 :])
    return None


class _StandIns(MetaPathFinder, Loader):
    """Finds packages that are not installed: modules with a class for every name that is asked of them."""

    used = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in _not_here else None

    def exec_module(self, module: ModuleType) -> None:
        self.used = True
        module.__getattr__ = lambda name: type(name, (), {"__init__": lambda self, *_, **__: None})  # type: ignore[method-assign]


def start(command: Command, program: str, arguments: Sequence[str], look: Callable[[], dict[str, Any]]) -> Start:
    """Run a module as the main program, in the folder and with the variables of a command.

    Classes without content stand in for packages that it imports and that are not here.
    """
    context = multiprocessing.get_context("fork")
    while True:
        here, there = context.Pipe()
        process = context.Process(target=_run, args=(there, command, program, arguments, look))
        process.start()
        started = here.recv() if here.poll(SECONDS) else Start(f"it did not end in {SECONDS} seconds")
        process.kill()
        process.join()
        package = started.missing.split(".")[0]
        if not package or package in _not_here or package == program.split(".")[0]:
            return started
        _not_here.add(package)


def broken(plain: Start) -> Verdict:
    """Of a program that does not start without the line changed."""
    return Verdict(Outcome.UNKNOWN if plain.has_stand_ins else Outcome.BROKEN, plain.ended)


def look_for(trainer: type) -> Callable[[], dict[str, Any]]:
    """What tells :func:`verdict` whether a program came to a trainer of this class."""
    return lambda: {"is_ours": issubclass(reached.get("trainer", object), trainer)}


def verdict(changed: Start) -> Verdict:
    """Of a program that was started with the line changed, and that starts without it."""
    refused = changed.found.get("refused") or (changed.ended if changed.ended.startswith("cw_grpo: ") else "")
    if refused:
        return Verdict(Outcome.REFUSED, refused)
    if changed.ended:
        return Verdict(Outcome.NOT_SERVED, changed.ended)
    has_method = changed.found.get("is_ours", changed.has_method)
    return Verdict(Outcome.WORKS) if has_method else Verdict(Outcome.SILENT, "it trains without this package")


def _run(
    there: Connection, command: Command, program: str, arguments: Sequence[str], look: Callable[[], dict[str, Any]]
) -> None:
    finder = _StandIns()
    sys.meta_path.append(finder)
    os.environ.update(command.environment)
    os.environ["WANDB_API_KEY"] = "none"  # which programs ask for before they start Ray
    os.chdir(command.folder)
    sys.path.insert(0, str(command.folder))
    sys.argv = [program, *arguments]
    has_method, ended, missing, refused = False, "", "", {}

    def init(*_: object, runtime_env: dict[str, Any] | None = None, **__: object) -> None:
        nonlocal has_method
        hook = (runtime_env or {}).get("worker_process_setup_hook", "")
        has_method = hook.startswith("cw_plugin.")
        frame = sys._getframe()  # OpenRLHF's program has its arguments in a local variable
        while frame := frame.f_back:
            if isinstance(frame.f_locals.get("args"), SimpleNamespace):
                reached["args"] = frame.f_locals["args"]
        raise Reached

    printed = StringIO()
    with patch.object(ray, "init", init), redirect_stdout(printed), redirect_stderr(printed):
        try:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
            ended = "it ended by itself"
        except Reached:
            pass
        except SystemExit as error:
            ended = error.code if isinstance(error.code, str) else "".join(printed.getvalue().splitlines()[-1:])
            ended = ended or "it ended by itself"
        except CWGRPOError as error:
            refused = {"refused": str(error)}
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            missing = getattr(error, "name", None) or "" if isinstance(error, ModuleNotFoundError) else ""
        found = look() | refused
    there.send(Start(" ".join(ended.split()), has_method, found, missing, finder.used))
