"""Composes verl's configuration as ``main_ppo`` does, but in half a second, without verl and torch; or reads one."""

import difflib
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from cw_plugin.errors import OptionsError, first_line
from cw_plugin.lab.configs import flat

_WHOLE = "give what cw-grpo config prints, or .hydra/config.yaml of a run"


def compose(overrides: Sequence[str]) -> DictConfig:
    """Compose verl's configuration, whose interpolations can be resolved, from its defaults and hydra's overrides.

    Raises:
        OptionsError: hydra refuses the overrides; the message is one sentence.
        ModuleNotFoundError: verl is not installed.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException, OverrideParseException

    verl = importlib.util.find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'verl'", name="verl")
    folder = Path(verl.submodule_search_locations[0], "trainer", "config")
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config: DictConfig = hydra_compose("ppo_trainer", list(overrides))
        OmegaConf.to_container(config, resolve=True)
    except OverrideParseException as error:
        raise OptionsError(
            f"{error.override!r} is not a hydra override",
            fix="write KEY=VALUE, and quote a VALUE that has special characters for hydra too: \"KEY='VALUE'\"",
        ) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _in_one_sentence(str(error)) from error
    return config


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


def read_configuration(file: str) -> DictConfig:
    """Read a whole configuration of verl, as ``cw-grpo config`` prints it, or hydra saves it (``.hydra/config.yaml``).

    Args:
        file: its path, or ``-`` for standard input.

    Raises:
        OptionsError: there is none; the message is one sentence.
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
