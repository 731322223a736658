"""Composes verl's configuration as ``main_ppo`` does, but in half a second, without loading verl or torch."""

import difflib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cw_plugin.configs import flat
from cw_plugin.errors import OptionsError


def compose(arguments: Sequence[str]) -> Any:
    """Compose verl's configuration, an OmegaConf ``DictConfig`` whose interpolations can be resolved.

    Args:
        arguments: hydra overrides; or a script of examples/ and overrides. The script runs with DRY_RUN=1, and prints
            its configuration.

    Raises:
        OptionsError: hydra or the script refuses the arguments; the message is one sentence.
        ModuleNotFoundError: verl is not installed.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if arguments and arguments[0].endswith(".sh"):
        return OmegaConf.create(_of_script(Path(arguments[0]), arguments[1:]))
    verl = importlib.util.find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'verl'", name="verl")
    folder = Path(verl.submodule_search_locations[0], "trainer", "config")
    parser = OverridesParser.create()
    for argument in arguments:
        try:
            parser.parse_override(argument)
        except HydraException as error:
            raise OptionsError(
                f"{argument!r} is not a hydra override; write KEY=VALUE, and quote a VALUE that has special "
                "characters for hydra too: \"KEY='VALUE'\""
            ) from error
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config = hydra_compose("ppo_trainer", list(arguments))
        OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise OptionsError(_one_sentence(str(error))) from error
    return config


def _one_sentence(text: str) -> str:
    """Shortens an error of hydra or OmegaConf, which has several lines, some about their internals."""
    if unknown := re.match(r"Could not override '(.+)'\.", text):
        near = difflib.get_close_matches(unknown[1], flat(compose([])), n=1, cutoff=0.8)
        meant = f"did you mean {near[0]}? A" if near else "check the spelling. A"
        return f"verl has no setting {unknown[1]}; {meant} new setting is added with +{unknown[1]}=..."
    plain = re.split(r"Config search path|full_key:", text)[0]
    return f"hydra refuses the overrides: {' '.join(plain.split())}"


def _of_script(script: Path, overrides: Sequence[str]) -> str:
    if not script.is_file():
        raise OptionsError(f"{script} does not exist; give a script or hydra overrides")
    if "DRY_RUN" not in script.read_text(encoding="utf-8"):
        raise OptionsError(
            f"{script} does not support DRY_RUN=1, and would train; give verl's overrides, or a script that starts verl"
        )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    result = subprocess.run(
        ["bash", script, *overrides], env={**os.environ, "PATH": path, "DRY_RUN": "1"}, capture_output=True, text=True
    )
    if result.returncode != 0:
        said = result.stderr.strip().splitlines() or [f"it ended with exit code {result.returncode}"]
        raise OptionsError(f"{script}: {said[-1].removeprefix('Error: ')}")
    if "algorithm:" not in result.stdout.splitlines():
        raise OptionsError(f"{script} does not start verl; give a script that does")
    return result.stdout
