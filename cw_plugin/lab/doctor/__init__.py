"""``cw-grpo doctor``: what verl says too late about a run, or never; before Ray starts and a GPU is taken.

A check is a function from the composed configuration to findings. Those of :data:`QUICK` load neither verl nor torch,
so that a script can run them before it trains.
"""

import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape

from cw_plugin.errors import CWGRPOError, OptionsError
from cw_plugin.lab.compose import compose, read_configuration
from cw_plugin.lab.doctor import datasets, environment, files, names, rows, settings, workers
from cw_plugin.lab.doctor.finding import Finding, said

Check = Callable[[DictConfig], Iterable[Finding]]

# Each check by the name under which its findings are printed.
QUICK: dict[str, Check] = {
    "method": settings.check_method,
    "switches": settings.check_switches,
    "ignored": settings.check_ignored,
    "schedule": settings.check_schedule,
    "sizes": settings.check_sizes,
    "ray cluster": workers.check_ray_cluster,
    "files": files.check_files,
    "rows": rows.check_rows,
}
CHECKS: dict[str, Check] = {
    **QUICK,
    "names": names.check_names,
    "aggregation": settings.check_aggregation,
    "metrics": settings.check_metrics,
    "verl": settings.check_verl,
    "lengths": files.check_lengths,
    "datasets": datasets.check_datasets,
    "packages": environment.check_packages,
    "trl": environment.check_trl,
    "ray workers": workers.check_ray_workers,
}


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
        problem = f"this check ended with {type(error).__name__}: {said(error)}"
        fix = "correct the setting that the error names; if the setting is right, report the error to us"
        findings.append(Finding(problem, fix))
    return findings


def doctor(overrides: Sequence[str], file: str | None = None, quick: bool = False) -> int:
    """Print what is wrong in a configuration of verl.

    Args:
        overrides: of verl's default configuration, in hydra's form.
        file: where the whole configuration is instead (:func:`.compose.read_configuration`).
        quick: run only :data:`QUICK`, print nothing, and raise the first fatal finding.

    Returns:
        The exit code: 1 if a finding is fatal, else 0.

    Raises:
        OptionsError: verl refuses the overrides, or ``quick`` and there is a fatal finding.
    """
    if file and overrides:
        raise OptionsError(f"--config {file} and {overrides[0]!r} are given", fix="give a configuration, or overrides")
    if not quick:
        print(
            "Loading verl, which takes about ten seconds, then reading the data, and asking a running Ray cluster ...",
            file=sys.stderr,
        )
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # what verl and others print while they load
        config = read_configuration(file) if file else compose(overrides)
        findings = examine(config, QUICK if quick else CHECKS)
    fatal = [finding for _, finding in findings if finding.fatal]
    if quick:
        if fatal:
            raise OptionsError(f"{fatal[0].what.removesuffix('.')}; fix: {fatal[0].fix}")
        return 0
    console = Console(soft_wrap=True, highlight=False)
    for name, finding in findings:
        label = "[red]Wrong[/red]" if finding.fatal else "[yellow]Note[/yellow]"
        console.print(label, escape(f"[{name}] {finding.what}\n      fix: {finding.fix}"))
    console.print(f"{len(fatal)} wrong, {len(findings) - len(fatal)} to note")
    return 1 if fatal else 0
