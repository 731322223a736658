"""``cw-grpo doctor``: checks a run before Ray starts and a GPU is taken.

A check is a function from the composed configuration to findings. :data:`QUICK` lists those that need neither verl nor
the model nor the data; the scripts of examples/ run them before every training. :data:`CHECKS` lists all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cw_plugin.doctor import data, environment, settings
from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import first_line

__all__ = ["CHECKS", "QUICK", "Check", "Finding", "examine"]

Check = Callable[[Any], Iterable[Finding]]

QUICK: tuple[Check, ...] = (
    settings.method,
    settings.rollout,
    settings.scope,
    settings.batch_sizes,
    environment.ray_cluster,
)
CHECKS: tuple[Check, ...] = (
    environment.versions,
    environment.fresh_interpreter,
    *QUICK,
    settings.aggregation,
    settings.reward_function,
    settings.verls_own_checks,
    data.lengths,
    data.files,
    data.prompts,
)


def examine(config: Any, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """What ``checks`` find in a composed configuration. If values have a wrong type, only those are reported."""
    if wrong := list(settings.values(config)):
        return wrong  # the other checks calculate with these values
    found: list[Finding] = []
    for check in checks:
        try:
            found.extend(check(config))
        except Exception as error:  # verl's configuration can hold anything: report it, and run the other checks
            found.append(
                Finding(
                    "doctor",
                    f"the check {check.__module__}.{check.__name__} failed: {type(error).__name__}: "
                    f"{first_line(error)}",
                    "a setting that it reads is missing, or has a value that it does not expect",
                    "correct that setting; if verl trains with it, please report a bug in cw-grpo doctor",
                    fatal=False,
                )
            )
    return found
