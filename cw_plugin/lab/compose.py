"""Composes verl's configuration as ``main_ppo`` does, but in half a second, without loading verl or torch."""

import difflib
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from cw_plugin.dry_run import dry_run, is_of_verl
from cw_plugin.errors import OptionsError, first_line
from cw_plugin.lab.configs import flat


def compose(arguments: Sequence[str]) -> DictConfig:
    """Compose verl's configuration, whose interpolations can be resolved.

    Args:
        arguments: hydra overrides; or a script of examples/ and overrides. The script runs with DRY_RUN=1, and prints
            its configuration.

    Raises:
        OptionsError: hydra or the script refuses the arguments; the message is one sentence.
        ModuleNotFoundError: verl is not installed.
    """
    if arguments and arguments[0].endswith(".sh"):
        return _of_script(Path(arguments[0]), arguments[1:])
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    folder = _folder_of_configuration()
    for argument in arguments:
        _check_override(argument)
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config = hydra_compose("ppo_trainer", list(arguments))
        OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _in_one_sentence(str(error)) from error
    return config


def _folder_of_configuration() -> Path:
    verl = importlib.util.find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'verl'", name="verl")
    return Path(verl.submodule_search_locations[0], "trainer", "config")


def _check_override(argument: str) -> None:
    """Raise OptionsError if hydra cannot read an argument."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if argument.startswith("--config"):
        raise OptionsError(
            f"{argument!r} chooses another configuration than ppo_trainer, which is not supported",
            fix="leave it out; for ppo_megatron_trainer, write model_engine=megatron",
        )
    try:
        OverridesParser.create().parse_override(argument)
    except HydraException as error:
        raise OptionsError(
            f"{argument!r} is not a hydra override",
            fix="write KEY=VALUE, and quote a VALUE that has special characters for hydra too: \"KEY='VALUE'\"",
        ) from error


def _in_one_sentence(message: str) -> OptionsError:
    """The error for what hydra or OmegaConf says in several lines, some about their internals."""
    unknown = re.match(r"Could not override '(.+)'\.", message)
    if unknown is None:
        beginning = re.split(r"Config search path|full_key:", message)[0]
        return OptionsError(f"hydra refuses the overrides: {' '.join(beginning.split())}")
    key = unknown[1]
    similar = difflib.get_close_matches(key, flat(compose([])), n=1, cutoff=0.8)
    advice = f"did you mean {similar[0]}? A" if similar else "check the spelling. A"
    return OptionsError(f"verl has no setting {key}", fix=f"{advice} new setting is added with +{key}=...")


def _of_script(script: Path, overrides: Sequence[str]) -> DictConfig:
    """The configuration that a script of examples/ prints with DRY_RUN=1."""
    printed = dry_run(script, overrides)
    if not is_of_verl(printed):
        raise OptionsError(f"{script} does not start verl", fix="give a script that does")
    return of_printed(printed)


def of_printed(printed: str) -> DictConfig:
    """The configuration of verl that a script has printed with DRY_RUN=1; OptionsError if it has printed more."""
    try:
        return cast(DictConfig, OmegaConf.create(printed))
    except YAMLError as error:
        raise OptionsError(
            f"the script prints something else beside its configuration ({first_line(error)})",
            fix="let it print that to stderr",
        ) from error
