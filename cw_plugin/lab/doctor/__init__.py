"""``cw-grpo doctor``: what verl says too late about a run, or never; before Ray starts and a GPU is taken.

A check is a function from the composed configuration to findings. Those of :data:`QUICK`, which usually load neither
verl nor torch, run before every training that a script of examples/ starts.
"""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from cw_plugin.errors import CWGRPOError, OptionsError
from cw_plugin.lab.compose import compose
from cw_plugin.lab.doctor import environment, files, resources, settings, workers
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.doctor.ground_truths import check_ground_truths

Check = Callable[[DictConfig], Iterable[Finding]]

# Each check by the name under which its findings are printed.
_ALWAYS: dict[str, Check] = {
    "method": settings.check_method,
    "switches": settings.check_switches,
    "reward": settings.check_reward,
    "ray cluster": workers.check_ray_cluster,
    "files": files.check_files,
    "ground truths": check_ground_truths,
}
QUICK: dict[str, Check] = {**_ALWAYS, "missing packages": environment.check_missing_packages}
# What a machine lacks for a run, asked before a script starts it.
RESOURCES: dict[str, Check] = {"memory": resources.check_memory_here, "disk": resources.check_disk}
CHECKS: dict[str, Check] = {
    **_ALWAYS,
    "aggregation": settings.check_aggregation,
    "metrics": settings.check_metrics,
    "verl": settings.check_verl,
    "fresh interpreter": workers.check_fresh_interpreter,
    "lengths": files.check_lengths,
    "packages": environment.check_packages,
    "gpus": environment.check_gpus,
    "memory": resources.check_memory,
    "disk": resources.check_disk,
}
ASKING_RAY: dict[str, Check] = {"ray workers": workers.check_ray_workers}


def examine(config: DictConfig, checks: Mapping[str, Check]) -> list[tuple[str, Finding]]:
    """What checks find in a composed configuration, each finding after the name of its check; fatal ones come first.

    An error that ends a check, of verl, of this package or of the check itself, is a fatal finding.
    """
    findings = [(name, finding) for name, check in checks.items() for finding in _findings(check, config)]
    return sorted(findings, key=lambda named: not named[1].fatal)


def _findings(check: Check, config: DictConfig) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(check(config))  # those before an error stay
    except CWGRPOError as error:
        findings.append(Finding(error.problem, error.fix))
    except Exception as error:  # verl's configuration can hold anything: say it, and run the other checks
        problem = f"this check ended with {type(error).__name__}: {' '.join(str(error).split())}"
        fix = "correct the setting that the error names; if the setting is right, report the error to us"
        findings.append(Finding(problem, fix))
    return findings


def doctor(
    arguments: Sequence[str],
    quick: bool = False,
    with_resources: bool = False,
    ask_ray: bool = True,
    as_json: bool = False,
) -> int:
    """Print what is wrong in a configuration of verl.

    Args:
        arguments: hydra overrides, or a script of examples/ and overrides.
        quick: run only :data:`QUICK`. Without ``as_json``, print nothing, and raise the first fatal finding.
        with_resources: with ``quick``, also run :data:`RESOURCES` if nothing is fatal so far.
        ask_ray: also ask a worker on each node of Ray.
        as_json: print a list of findings, each with the name of its check.

    Returns:
        The exit code: 1 if a finding is fatal, else 0.

    Raises:
        OptionsError: verl refuses the arguments, or ``quick`` and there is a fatal finding.
    """
    if quick:
        checks = QUICK
    elif ask_ray:
        checks = CHECKS | ASKING_RAY
    else:
        checks = CHECKS
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # what verl and others print while they load
        config = compose(arguments)
        findings = examine(config, checks)
        if quick and with_resources and not any(finding.fatal for _, finding in findings):
            findings += examine(config, RESOURCES)
    fatal = [finding for _, finding in findings if finding.fatal]
    if as_json:
        print(json.dumps([{"check": name, **asdict(finding)} for name, finding in findings], indent=1))
    elif not quick:
        _show(findings)
    elif fatal:
        raise OptionsError(f"{fatal[0].what.removesuffix('.')}; fix: {fatal[0].fix}")
    return 1 if fatal else 0


def _show(findings: Sequence[tuple[str, Finding]]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for name, finding in findings:
        label = "[red]Wrong[/red]" if finding.fatal else "[yellow]Note[/yellow]"
        console.print(label, escape(f"[{name}] {finding.what}\n      fix: {finding.fix}"))
    fatal = sum(finding.fatal for _, finding in findings)
    console.print(f"{fatal} wrong, {len(findings) - fatal} to note")
