"""``cw-grpo memory``."""

from collections.abc import Sequence

from rich.console import Console

from cw_plugin.errors import OptionsError
from cw_plugin.verl_integration.compose import compose
from cw_plugin.verl_integration.doctor.memory.estimate import GIB, ROOM, SOLD_AS
from cw_plugin.verl_integration.doctor.resources import compare, free_disk

_COLUMNS = ("weights", "gradients", "optimizer", "reference", "activations", "vLLM", "processes")


def show(arguments: Sequence[str], gpu: int) -> int:
    """Print what a run needs on each GPU of ``gpu`` GB, and whether it fits; the exit code is 1 if it does not."""
    from cw_plugin.verl_integration.doctor.memory import estimate

    if gpu not in SOLD_AS:
        raise OptionsError(
            f"--gpu {gpu} is no size that is known here", fix=f"use one of {', '.join(map(str, SOLD_AS))}"
        )
    config = compose(arguments)
    size = SOLD_AS[gpu]
    needs = estimate(config, size)
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"{config.actor_rollout_ref.model.path}, {needs.model / 1e9:.2f} billion parameters, {needs.engine} on "
        f"{needs.gpus} GPUs of {gpu} GB ({size} GiB), calculated in GiB on each:"
    )
    console.print(" " * 11 + "".join(f"{name:>12}" for name in (*_COLUMNS, "total")))
    for stage in needs.stages:
        cells = "".join(_cell(stage.parts.get(name, 0.0)) for name in _COLUMNS)
        console.print(f"{stage.name:11}{cells}{_cell(stage.total)}")
    folder = config.trainer.default_local_dir
    free = "" if "://" in folder else f"; {free_disk(folder) / 1e9:.0f} GB are free"
    console.print(
        f"vLLM answers all prompts at once with {needs.vllm / GIB:.0f} GiB. Memory of a node for what is offloaded: "
        f"{needs.host / GIB:.0f} GiB.\nA checkpoint has {needs.checkpoint / 1e9:.0f} GB, the {needs.checkpoints} of "
        f"the run {needs.checkpoints * needs.checkpoint / 1e9:.0f} GB{free}."
    )
    problems = list(compare(config, needs, size, f"of {gpu} GB"))
    for finding in problems:
        console.print(f"{finding.what}\n      fix: {finding.fix}", markup=False)
    if not problems:
        console.print(f"It fits, with more than {1 - ROOM:.0%} of room.")
    return 1 if needs.largest.total > ROOM * size * GIB else 0


def _cell(size: float) -> str:
    return f"{size / GIB:12.1f}" if size else f"{'-':>12}"
