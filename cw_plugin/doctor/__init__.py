"""``cw-grpo doctor``: what verl says too late about a run, or never; before Ray starts and a GPU is taken.

A check is a function from the composed configuration to findings. :data:`QUICK` lists those that usually load neither
verl nor torch; the scripts of examples/ run them before every training. :data:`CHECKS` lists all.
"""

from __future__ import annotations

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
    settings.switches,
    settings.scope,
    settings.ignored_reward,
    environment.ray_cluster,
    data.model,
    data.files,
    data.ground_truths,
)
CHECKS: tuple[Check, ...] = (
    *QUICK,
    settings.batch_sizes,
    settings.aggregation,
    settings.loggers,
    settings.reward_function,
    settings.validation,
    environment.fresh_interpreter,
    data.lengths,
)


def examine(config: Any, checks: Iterable[Check] = CHECKS) -> tuple[list[tuple[str, Finding]], dict[str, str]]:
    """What ``checks`` find in a composed configuration, fatal findings first, each with the name of its check; and the
    checks that failed themselves -> the error."""
    found: list[tuple[str, Finding]] = []
    failed = {}
    for check in checks:
        name = check.__name__.replace("_", " ")
        try:
            found.extend((name, finding) for finding in check(config))
        except Exception as error:  # verl's configuration can hold anything: say it, and run the other checks
            failed[name] = f"{type(error).__name__}: {first_line(error)}"
    return sorted(found, key=lambda item: not item[1].fatal), failed


def doctor(arguments: Sequence[str], quick: bool = False, ask_ray: bool = True, as_json: bool = False) -> int:
    """``cw-grpo doctor``: compose the configuration, examine it, and print what was found.

    Args:
        arguments: hydra overrides; or a script of examples/ and overrides.
        quick: run only :data:`QUICK`, and print nothing about what may run.
        ask_ray: also ask a worker on each node of Ray.
        as_json: print the findings as JSON, and nothing else.

    Returns:
        The exit code: 1 if a finding is fatal or a check failed itself, else 0. With ``quick``, a check that failed
        itself is only said on stderr: verl may well train with what the check did not expect.

    Raises:
        OptionsError: the configuration cannot be composed; or with ``quick``, the first fatal finding.
    """
    checks = QUICK if quick else (*CHECKS, environment.ray_workers) if ask_ray else CHECKS
    with _without_the_hosts_remarks():
        config = compose(arguments)
        findings, failed = examine(config, checks)
        trainer = "" if quick else environment.trainer_and_hooks(config)
    fatal = sum(finding.fatal for _, finding in findings)
    if quick and fatal:
        raise OptionsError(f"{findings[0][1].what}; fix: {findings[0][1].fix}")
    if as_json:
        checked: list[dict[str, Any]] = [{"check": name, **finding._asdict()} for name, finding in findings]
        print(json.dumps([*checked, *({"check": name, "failed": why} for name, why in failed.items())], indent=1))
        return int(fatal > 0 or bool(failed))
    console = Console(soft_wrap=True, highlight=False, stderr=quick)
    if not quick:
        console.print(escape(trainer))
        for name, finding in findings:
            label = "[red]Wrong[/red]" if finding.fatal else "[yellow]Note[/yellow]"
            console.print(f"{label} {escape(f'[{name}] {finding.what}')}")
            console.print(escape(f"      fix: {finding.fix}"))
    for name, why in failed.items():
        console.print(f"[red]Not checked[/red] {escape(f'[{name}] the check failed itself: {why}')}")
    if quick:
        return 0
    console.print(f"{fatal} wrong, {len(findings) - fatal} to note, {len(failed)} not checked")
    return int(fatal > 0 or bool(failed))


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
