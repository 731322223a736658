"""``cw-grpo doctor``: what verl says too late about a run, or never; before Ray starts and a GPU is taken.

A check is a function from the composed configuration to findings. Those of :data:`QUICK`, which usually load neither
verl nor torch, run before every training that a script of examples/ starts.
"""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from rich.console import Console
from rich.markup import escape

from cw_plugin.errors import CWGRPOError, OptionsError
from cw_plugin.verl_integration.compose import compose
from cw_plugin.verl_integration.doctor import environment, files, resources, settings, workers
from cw_plugin.verl_integration.finding import Finding
from cw_plugin.verl_integration.ground_truths import ground_truths

_SETTINGS = (settings.method, settings.switches, settings.scope, settings.reward, workers.ray_cluster)
_FILES = (files.files, ground_truths)
_MACHINE = (environment.packages, environment.gpus, resources.memory, resources.disk)
QUICK = (*_SETTINGS, *_FILES, environment.missing_packages)
RESOURCES = (resources.memory_here, resources.disk)
_VERL = (settings.aggregation, settings.metrics, settings.verl, workers.fresh_interpreter, files.lengths)
CHECKS = (*_SETTINGS, *_FILES, *_VERL, *_MACHINE)


def examine(config: Any, asked: Iterable[Callable[[Any], Iterable[Finding]]]) -> list[tuple[str, Finding]]:
    """What checks find in a composed configuration, each with the name of its check; fatal findings come first. An
    error that ends a check, of verl, of this package or of the check itself, is a fatal finding."""
    found: list[tuple[str, Finding]] = []
    for check in asked:
        name = check.__name__.replace("_", " ")
        try:
            for finding in check(config):
                found.append((name, finding))
        except CWGRPOError as error:
            what, _, fix = str(error).partition("; ")
            found.append((name, Finding(what, fix)))
        except Exception as error:  # verl's configuration can hold anything: say it, and run the other checks
            what = f"this check ended with {type(error).__name__}: {' '.join(str(error).split())}"
            fix = "correct the setting that the error names; if the setting is right, report the error to us"
            found.append((name, Finding(what, fix)))
    return sorted(found, key=lambda item: not item[1].fatal)


def doctor(
    arguments: Sequence[str],
    quick: bool = False,
    with_resources: bool = False,
    ask_ray: bool = True,
    as_json: bool = False,
) -> int:
    """Print what is found in the configuration that hydra overrides, or a script of examples/ and overrides, compose.

    ``quick`` runs only :data:`QUICK`, and with ``with_resources`` then :data:`RESOURCES`, if nothing is fatal so far.
    Without ``as_json`` it prints nothing, and raises OptionsError with the first fatal finding. ``ask_ray`` also asks a
    worker on each node of Ray. Returns the exit code: 1 if a finding is fatal, else 0.
    """
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # what verl and others print while they load
        config = compose(arguments)
        if quick:
            findings = examine(config, QUICK)
            if with_resources and not any(finding.fatal for _, finding in findings):
                findings += examine(config, RESOURCES)
        else:
            findings = examine(config, (*CHECKS, workers.ray_workers) if ask_ray else CHECKS)
    fatal = sum(finding.fatal for _, finding in findings)
    if as_json:
        print(json.dumps([{"check": name, **finding._asdict()} for name, finding in findings], indent=1))
    elif quick and fatal:
        first = next(finding for _, finding in findings if finding.fatal)
        raise OptionsError(f"{first.what.removesuffix('.')}; fix: {first.fix}")
    elif not quick:
        console = Console(soft_wrap=True, highlight=False)
        for name, finding in findings:
            label = "[red]Wrong[/red]" if finding.fatal else "[yellow]Note[/yellow]"
            console.print(label, escape(f"[{name}] {finding.what}\n      fix: {finding.fix}"))
        console.print(f"{fatal} wrong, {len(findings) - fatal} to note")
    return int(fatal > 0)
