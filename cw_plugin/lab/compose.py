"""Composes the configuration of a program of verl as hydra does, but in half a second, without verl; or reads one."""

import argparse
import ast
import difflib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from cw_plugin.errors import OptionsError, first_line
from cw_plugin.lab.configs import flat

MAIN_PPO = "verl.trainer.main_ppo"
_OF_ASYNC_PROGRAMS = ("rollout.", "async_training.")  # the settings that main_ppo does not have
_WHOLE = "give what cw-grpo config prints, or .hydra/config.yaml of a run"


def compose(command: Sequence[str]) -> DictConfig:
    """Compose the configuration that a command of verl trains with; its interpolations can be resolved.

    Args:
        command: a whole one, with ``-m PROGRAM`` or a script, before which anything may stand; or only the overrides
            and the options of hydra, such as ``--config-name``, for verl's ``main_ppo``.

    Raises:
        OptionsError: the program is not here or trains nothing, or hydra refuses the rest; the message is one sentence.
        ModuleNotFoundError: verl is not installed.
    """
    from hydra.errors import HydraException, OverrideParseException

    program, arguments = _split(command)
    file, options = _file_of(program), _parsed(arguments)
    folder, name = _hydra_main(program, file, options)
    try:
        config = _composed(file, folder, name, options)
        OmegaConf.to_container(config, resolve=True)
    except OverrideParseException as error:
        raise OptionsError(
            f"{error.override!r} is not a hydra override",
            fix="write KEY=VALUE, and quote a VALUE that has special characters for hydra too: \"KEY='VALUE'\"",
        ) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _in_one_sentence(str(error), program) from error
    if "actor_rollout_ref" not in config:
        raise OptionsError(f"{program} does not train with verl's trainer", fix=f"give a command of {MAIN_PPO}")
    return config


def _composed(file: Path, folder: str | None, name: str | None, options: argparse.Namespace) -> DictConfig:
    """What ``@hydra.main`` of a file passes to its function, from this folder and name of a configuration."""
    from hydra import compose as hydra_compose
    from hydra import version
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_automatic_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra

    search_path = create_automatic_config_search_path(str(file), None, folder)
    if options.config_dir:
        search_path.prepend("command-line", Path(options.config_dir).absolute().as_uri(), SearchPathQuery("schema"))
    version.setbase(None)  # as verl's programs do
    Hydra.create_main_hydra2(file.stem, search_path)
    try:
        return hydra_compose(name, options.overrides)
    finally:
        GlobalHydra.instance().clear()


def _split(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The program of a command, and its arguments."""
    for place, word in enumerate(command):
        after = command[place + 1 :]
        if word == "-m" and after and "=" not in after[0]:  # which is hydra's -m otherwise
            return after[0], after[1:]
        if word.endswith(".py") and "=" not in word:
            return word, after
    return MAIN_PPO, command


def _file_of(program: str) -> Path:
    """The source of a module or script, without importing it."""
    package, *names = program.split(".")
    if program.endswith(".py"):
        files = [Path(program)]
    else:
        spec = importlib.util.find_spec(package)
        if package == "verl" and (spec is None or not spec.submodule_search_locations):
            raise ModuleNotFoundError("No module named 'verl'", name="verl")
        folders = (spec.submodule_search_locations if spec else None) or []
        files = [Path(folder, *names).with_suffix(".py") for folder in folders]
    for file in files:
        if file.is_file():
            return file
    raise OptionsError(f"the program {program} is not here", fix=f"install it, or give a command of {MAIN_PPO}")


def _hydra_main(program: str, file: Path, options: argparse.Namespace) -> tuple[str | None, str | None]:
    """The ``config_path`` and ``config_name`` of the ``@hydra.main`` in a source, unless the options name others."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hydra.main":
            given = dict(zip(("config_path", "config_name"), node.args, strict=False))  # those without a keyword
            given |= {str(argument.arg): argument.value for argument in node.keywords}
            folder = options.config_path or _constant("config_path", given, program)
            return folder, options.config_name or _constant("config_name", given, program)
    raise OptionsError(f"the program {program} has no hydra.main", fix=f"give a command of {MAIN_PPO}")


def _constant(name: str, given: Mapping[str, ast.expr], program: str) -> str | None:
    """The value of an argument of ``hydra.main``, None if it is not given; OptionsError if it is no constant."""
    argument = given.get(name, ast.Constant(None))
    if not isinstance(argument, ast.Constant):
        raise OptionsError(f"the {name} of {program} is computed", fix=f"give --{name.replace('_', '-')}")
    return None if argument.value is None else str(argument.value)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Hydra's options and overrides."""
    from hydra._internal.utils import get_args_parser

    def refuse(message: str) -> NoReturn:
        raise OptionsError(f"hydra refuses the command: {message}", fix="write KEY=VALUE, or an option of hydra")

    parser: Any = get_args_parser()
    parser.error = refuse  # which would end this process
    parsed: argparse.Namespace = parser.parse_args(arguments)
    return parsed


def _in_one_sentence(message: str, program: str) -> OptionsError:
    """The error for what hydra or OmegaConf says in several lines, some about their internals."""
    unknown = re.match(r"Could not override '(.+)'\.", message)
    if unknown is None:
        beginning = re.split(r"Config search path|full_key:", message)[0]
        fix = "give the whole command, with -m PROGRAM" if "primary config" in beginning else ""
        return OptionsError(f"hydra refuses the overrides: {' '.join(beginning.split()).removesuffix('.')}", fix)
    key = unknown[1]
    if program == MAIN_PPO and key.startswith(_OF_ASYNC_PROGRAMS):
        fix = "give the whole command of fully_async_policy or one_step_off_policy, which have it: -m PROGRAM KEY=VALUE"
        return OptionsError(f"{MAIN_PPO} has no setting {key}", fix)
    similar = [] if program != MAIN_PPO else difflib.get_close_matches(key, flat(compose([])), n=1, cutoff=0.8)
    advice = f"did you mean {similar[0]}? A" if similar else "check the spelling. A"
    of = "verl" if program == MAIN_PPO else program
    return OptionsError(f"{of} has no setting {key}", fix=f"{advice} new setting is added with +{key}=...")


def read_configuration(file: str) -> DictConfig:
    """Read a whole configuration of verl, as ``cw-grpo config`` prints it, or hydra saves it (``.hydra/config.yaml``).

    ``-`` is standard input. If there is no configuration, it is an OptionsError of one sentence.
    """
    name = "standard input" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        config = OmegaConf.create(text)
        OmegaConf.to_container(config, resolve=True)
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        raise OptionsError(f"{name} cannot be read ({first_line(error)})", fix=_WHOLE) from error
    if not isinstance(config, DictConfig) or "actor_rollout_ref" not in config:
        raise OptionsError(f"{name} holds no configuration of verl", fix=_WHOLE)
    return config
