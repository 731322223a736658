"""``cw-grpo doctor``: says what is wrong with a run before Ray starts and a GPU is taken.

Every check is a function from the composed configuration to findings, listed in :data:`CHECKS`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cw_plugin.doctor import data, environment, memory, settings
from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import OptionsError

__all__ = ["CHECKS", "Finding", "compose", "examine"]

CHECKS: tuple[Callable[[Any], Iterable[Finding]], ...] = (
    environment.versions,
    environment.fresh_interpreter,
    settings.method,
    settings.rollout,
    settings.scope,
    settings.batch_sizes,
    settings.aggregation,
    settings.reward_function,
    settings.verls_own_checks,
    data.context_length,
    data.files,
    data.prompts,
    memory.estimate,
)


def compose(arguments: Sequence[str]) -> Any:
    """verl's configuration as main_ppo would compose it.

    Args:
        arguments: hydra overrides; or one of the recipes (``run_*.sh``) and overrides, which is asked with DRY_RUN=1.

    Raises:
        OptionsError: hydra or the script refuses them.
    """
    from omegaconf import OmegaConf

    if arguments and arguments[0].endswith(".sh"):
        return OmegaConf.create(_of_script(Path(arguments[0]), arguments[1:]))
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException

    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            return hydra_compose("ppo_trainer", list(arguments))
    except HydraException as error:
        raise OptionsError(f"verl's configuration does not take these overrides: {error}") from error


def _of_script(script: Path, overrides: Sequence[str]) -> Any:
    import yaml

    if not script.is_file():
        raise OptionsError(f"{script} does not exist; give a script or hydra overrides.")
    if "DRY_RUN" not in script.read_text(encoding="utf-8"):
        raise OptionsError(
            f"{script} does not know DRY_RUN=1, and would train; give doctor its hydra overrides instead."
        )
    result = subprocess.run(
        ["bash", script, *overrides], env={**os.environ, "DRY_RUN": "1"}, capture_output=True, text=True
    )
    if result.returncode != 0:
        logged = ("WARNING:", "INFO:", "Set the environment variable HYDRA_FULL_ERROR")
        said = " ".join(line.strip() for line in result.stderr.splitlines() if not line.startswith(logged))
        raise OptionsError(f"DRY_RUN=1 bash {script} failed with exit code {result.returncode}: {said[-500:]}")
    return yaml.safe_load(result.stdout)


def examine(config: Any, ray: bool = True) -> list[Finding]:
    """All findings about a composed configuration; with ``ray``, those of Ray workers too."""
    checks = [*CHECKS, environment.ray_workers] if ray else CHECKS
    return [finding for check in checks for finding in check(config)]
