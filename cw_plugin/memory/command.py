"""``cw-grpo memory``."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from cw_plugin.dry_run import dry_run, is_of_verl
from cw_plugin.errors import OptionsError
from cw_plugin.files import free_disk, is_remote
from cw_plugin.memory import openrlhf, trl
from cw_plugin.memory.stages import GIB, ROOM, SOLD_AS, Estimate, shortage

_COLUMNS = ("weights", "gradients", "optimizer", "reference", "activations", "vLLM", "processes")


def show(arguments: Sequence[str], gpu: int) -> int:
    """Print what a run needs on each GPU of ``gpu`` GB, and whether it fits; the exit code is 1 if it does not.

    It does not fit if a stage leaves too little room, or if vLLM's share does not even hold the weights.
    """
    if gpu not in SOLD_AS:
        raise OptionsError(
            f"--gpu {gpu} is no size that is known here", fix=f"use one of {', '.join(map(str, SOLD_AS))}"
        )
    if not (arguments and arguments[0].endswith(".sh")):
        return _of_verl(arguments, None, gpu)
    printed = dry_run(Path(arguments[0]), arguments[1:])
    for host in (trl, openrlhf):
        if host.is_of(printed):
            needs = host.estimate(printed, SOLD_AS[gpu])
            return _print(needs, gpu, _problems(needs, gpu, host.FIXES))
    if not is_of_verl(printed):
        raise OptionsError(
            f"the memory of {arguments[0]} is not calculated", fix="give a recipe of verl, TRL or OpenRLHF"
        )
    return _of_verl(arguments, printed, gpu)


def _problems(needs: Estimate, gpu: int, fixes: Mapping[str, str]) -> list[str]:
    """What does not fit, and what to change."""
    size = SOLD_AS[gpu]
    found = [(shortage(stage, size, f"of {gpu} GB"), fixes[stage.name]) for stage in needs.stages]
    return [f"{problem}\n      fix: {fix}" for problem, fix in found if problem]


def _of_verl(arguments: Sequence[str], printed: str | None, gpu: int) -> int:
    """As :func:`show`, for overrides of verl, or for a script that has ``printed`` verl's configuration."""
    from cw_plugin.lab.compose import compose, of_printed
    from cw_plugin.lab.doctor.memory import estimate
    from cw_plugin.lab.doctor.resources import compare

    config = compose(arguments) if printed is None else of_printed(printed)
    needs = estimate(config, SOLD_AS[gpu])
    findings = list(compare(config, needs, SOLD_AS[gpu], f"of {gpu} GB"))
    code = _print(needs, gpu, [f"{finding.what}\n      fix: {finding.fix}" for finding in findings])
    return 1 if any(finding.fatal for finding in findings) else code


def _print(needs: Estimate, gpu: int, problems: Sequence[str]) -> int:
    size = SOLD_AS[gpu]
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"{needs.path}, {needs.model / 1e9:.2f} billion parameters, {needs.engine} on "
        f"{needs.gpus} GPUs of {gpu} GB ({size} GiB), calculated in GiB on each:"
    )
    console.print(" " * 11 + "".join(f"{name:>12}" for name in (*_COLUMNS, "total")))
    for stage in needs.stages:
        cells = "".join(_cell(stage.parts.get(name, 0.0)) for name in _COLUMNS)
        console.print(f"{stage.name:11}{cells}{_cell(stage.total)}")
    free = "" if is_remote(needs.folder) else f"; {free_disk(needs.folder) / 1e9:.0f} GB are free"
    console.print(
        f"vLLM answers all prompts at once with {needs.vllm / GIB:.0f} GiB. Memory of a node for what is offloaded: "
        f"{needs.host / GIB:.0f} GiB.\nA checkpoint has {needs.checkpoint / 1e9:.0f} GB; at most {needs.checkpoints} "
        f"are there at once, with {needs.checkpoints * needs.checkpoint / 1e9:.0f} GB{free}."
    )
    for problem in problems:
        console.print(problem, markup=False)
    if not problems:
        console.print(f"It fits, with more than {1 - ROOM:.0%} of room.")
    return 1 if needs.largest.total > ROOM * size * GIB else 0


def _cell(size: float) -> str:
    return f"{size / GIB:12.1f}" if size else f"{'-':>12}"
