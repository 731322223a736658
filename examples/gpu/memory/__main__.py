"""A program: print what a run of verl needs on each GPU and on disk. It needs verl, and no GPU.

    DRY_RUN=1 bash examples/run_qwen2_5_math_7b_fsdp.sh | python examples/gpu/memory [--gpu 48]

It reads verl's configuration from standard input. The exit code is 1 if the run does not fit.
"""

import argparse
import sys

from estimate import GIB, ROOM, SOLD_AS, Estimate, NotCalculatedError, checkpoints, estimate, vllm_needs
from omegaconf import DictConfig, OmegaConf
from shapes import read_shape

COLUMNS = ("weights", "gradients", "optimizer", "reference", "activations", "vLLM", "processes")


def show(config: DictConfig, needs: Estimate, gpu: int) -> bool:
    """Print what a run needs on GPUs of ``gpu`` GB; whether each stage leaves a tenth of the GPU free."""
    size, path = SOLD_AS[gpu], config.actor_rollout_ref.model.path
    number = config.trainer.nnodes * config.trainer.n_gpus_per_node
    print(
        f"{path}, {needs.parameters / 1e9:.2f} billion parameters, {needs.engine} on "
        f"{number} GPUs of {gpu} GB ({size} GiB), calculated in GiB on each:"
    )
    print(" " * 11 + "".join(f"{name:>12}" for name in (*COLUMNS, "total")))
    for stage in needs.stages:
        cells = "".join(_cell(stage.parts.get(name, 0.0)) for name in COLUMNS)
        print(f"{stage.name:11}{cells}{_cell(stage.total)}")
    at_once, share = vllm_needs(config, read_shape(path), needs.parameters), needs.stages[0].parts["vLLM"]
    kept = checkpoints(config)
    print(
        f"vLLM answers all prompts at once with {at_once / GIB:.0f} GiB; it gets {share / GIB:.0f}. "
        f"Memory of a node for what is offloaded: {needs.host / GIB:.0f} GiB.\n"
        f"A checkpoint has {needs.checkpoint / 1e9:.0f} GB; the run keeps {kept}, "
        f"with {kept * needs.checkpoint / 1e9:.0f} GB."
    )
    fits = needs.largest.total <= ROOM * size * GIB and share >= at_once
    print("It fits, with more than 10% of room." if fits else "It does not fit with 10% of room.")
    return fits


def _cell(size: float) -> str:
    return f"{size / GIB:12.1f}" if size else f"{'-':>12}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", type=int, choices=SOLD_AS, default=80, help="GB of each GPU, as sold; default 80")
    gpu = parser.parse_args().gpu
    config = OmegaConf.create(sys.stdin.read())
    if "actor_rollout_ref" not in config:
        sys.exit("standard input holds no configuration of verl; see --help")
    try:
        needs = estimate(config, SOLD_AS[gpu])
    except NotCalculatedError as error:
        sys.exit(str(error))
    sys.exit(0 if show(config, needs, gpu) else 1)


if __name__ == "__main__":
    main()
