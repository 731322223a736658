"""``cw-grpo doctor``: checks a run before Ray starts and a GPU is taken.

A check is a function from the composed configuration to findings. :data:`QUICK` lists those that need neither verl nor
the model nor the data; the scripts of examples/ run them before every training. :data:`CHECKS` lists all.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console
from rich.markup import escape

from cw_plugin.doctor import data, environment, settings
from cw_plugin.doctor.finding import Finding
from cw_plugin.errors import OptionsError, first_line
from cw_plugin.verl_integration.config import compose

__all__ = ["CHECKS", "QUICK", "Check", "Finding", "doctor", "examine"]

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


def doctor(arguments: Sequence[str], quick: bool = False, ask_ray: bool = True, as_json: bool = False) -> int:
    """``cw-grpo doctor``: compose the configuration, examine it, and print what was found.

    Args:
        arguments: hydra overrides; or a script of examples/ and overrides.
        quick: run only :data:`QUICK`, and print nothing.
        ask_ray: also ask a worker on each node of Ray.
        as_json: print the findings as JSON, and nothing else.

    Returns:
        The exit code: 1 if a finding is fatal, else 0.

    Raises:
        OptionsError: the configuration cannot be composed; or with ``quick``, the first fatal finding.
    """
    checks = QUICK if quick else (*CHECKS, environment.ray_workers) if ask_ray else CHECKS
    with _without_the_hosts_remarks():
        config = compose(arguments)
        findings = sorted(examine(config, checks), key=lambda finding: not finding.fatal)
        trainer = "" if quick else environment.trainer_and_hooks(config)
    fatal = sum(finding.fatal for finding in findings)
    if quick:
        if fatal:
            raise OptionsError(f"{findings[0].what}: {findings[0].why}; fix: {findings[0].fix}")
        return 0
    console = Console(soft_wrap=True, highlight=False)
    if as_json:
        console.out(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
        return int(fatal > 0)
    console.print(escape(trainer))
    for finding in findings:
        label = "[red]Wrong[/red]" if finding.fatal else "[yellow]Note[/yellow]"
        console.print(f"{label} {escape(f'[{finding.check}] {finding.what}')}")
        console.print(escape(f"      why: {finding.why}"))
        console.print(escape(f"      fix: {finding.fix}"))
    console.print(f"{fatal} wrong, {len(findings) - fatal} to note")
    return int(fatal > 0)


@contextmanager
def _without_the_hosts_remarks() -> Iterator[None]:
    """Hide what verl, Megatron and the hub print while they load; it would bury the answer."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
