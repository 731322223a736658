"""The checks of memory and disk: what a run needs, against what a GPU, this node and its disk have."""

import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cw_plugin.verl_integration.doctor.memory.estimate import GIB, ROOM, SOLD_AS, VLLM_WORK, Estimate, Stage, estimate
from cw_plugin.verl_integration.finding import Finding

ACTOR = "actor_rollout_ref.actor"
SHARE = "actor_rollout_ref.rollout.gpu_memory_utilization"
_ASSUMED = 80  # GB, of the GPUs that the recipes are for, where there is none


def memory(config: Any) -> Iterator[Finding]:
    """The GPUs of this machine, or, where there are none, GPUs of 80 GB."""
    if config.trainer.device == "cpu":
        return
    here = gpus_here()
    gpu, name = (min(here), "of this machine") if here else (SOLD_AS[_ASSUMED], f"of {_ASSUMED} GB")
    needs = estimate(config, gpu)
    yield from compare(config, needs, gpu, name)
    if here:
        yield from _host(needs)


def memory_here(config: Any) -> Iterator[Finding]:
    """The GPUs of this machine, if it has any: a script may start on a machine that trains nothing itself."""
    if gpus_here():
        yield from memory(config)


def disk(config: Any) -> Iterator[Finding]:
    """Whether the checkpoints that a run keeps fit where it writes them. verl keeps all unless told otherwise."""
    folder = config.trainer.default_local_dir
    if config.trainer.device == "cpu" or "://" in folder:
        return
    needs, free = estimate(config, SOLD_AS[_ASSUMED]), free_disk(folder)
    wanted = needs.checkpoint * needs.checkpoints
    if free < wanted:
        what = (
            f"{needs.checkpoints} checkpoints of {needs.checkpoint / 1e9:.0f} GB need {wanted / 1e9:.0f} GB, and "
            f"{folder} has {free / 1e9:.0f} GB free"
        )
        kept = int(free // needs.checkpoint)
        fewer = f", or trainer.max_actor_ckpt_to_keep={kept - 1}" if kept > 1 else ""  # the old one goes after the new
        yield Finding(what, f"trainer.default_local_dir=<a folder on a larger disk>{fewer}")


def compare(config: Any, needs: Estimate, gpu: float, name: str) -> Iterator[Finding]:
    """What does not fit in a GPU of ``gpu`` GiB, called ``name``, with the room of :data:`ROOM`."""
    for stage in needs.stages:
        if stage.total > ROOM * gpu * GIB:
            fatal = stage.total > gpu * GIB
            much = f"{stage.total / GIB:.0f} of {gpu:.0f} GiB"
            why = "more than there is" if fatal else "with less than 10% of room"
            what = f"{stage.name} needs about {much} on each GPU {name}, {why} (calculated; cw-grpo memory shows it)"
            yield Finding(what, _fix(config, needs, stage, gpu), fatal)
    share = config.actor_rollout_ref.rollout.gpu_memory_utilization * gpu * GIB
    least = 2.0 * needs.model / config.actor_rollout_ref.rollout.tensor_model_parallel_size + VLLM_WORK
    if share < needs.vllm:
        fatal = share < least
        enough = (
            f"{least / GIB:.0f} for its weights alone" if fatal else f"{needs.vllm / GIB:.0f} to answer all at once"
        )
        what = f"{SHARE} gives vLLM {share / GIB:.0f} GiB, and it needs about {enough}"
        yield Finding(what, f"{SHARE}={math.ceil(needs.vllm / (gpu * GIB) * 100) / 100}", fatal)


def _fix(config: Any, needs: Estimate, stage: Stage, gpu: float) -> str:
    """The override that makes room, by what fills the stage."""
    megatron = needs.engine == "Megatron"
    engine = f"{ACTOR}.{'megatron' if megatron else 'fsdp_config'}"
    limit = ROOM * gpu * GIB
    if "vLLM" in stage.parts:
        others = stage.total - stage.parts["vLLM"]
        if needs.vllm + others <= limit:
            return f"{SHARE}={math.floor((limit - others) / (gpu * GIB) * 100) / 100}"
        return f"{engine}.param_offload=True {engine}.optimizer_offload=True"
    recomputes = megatron and _transformer(config).recompute_granularity == "full"
    if megatron and stage.name == "training" and not recomputes:
        recompute = f"{engine}.override_transformer_config.recompute"
        return f"{recompute}_granularity=full {recompute}_method=uniform {recompute}_num_layers=1"
    room = limit - (stage.total - stage.parts["activations"])
    longest = config.data.max_prompt_length + config.data.max_response_length
    key, tokens = f"{ACTOR}.ppo_max_token_len_per_gpu", config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu
    if stage.name == "log-probs":
        if not config.actor_rollout_ref.actor.entropy_from_logits_with_chunking:
            return f"{ACTOR}.entropy_from_logits_with_chunking=True"
        key = "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"
        tokens = config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu
    fitting = int(tokens * room / stage.parts["activations"])
    if fitting >= longest:
        return f"{key}={fitting}"
    return f"a larger {engine}.tensor_model_parallel_size" if megatron else f"{engine}.offload_policy=True"


def _transformer(config: Any) -> Any:
    return config.actor_rollout_ref.actor.megatron.override_transformer_config


def _host(needs: Estimate) -> Iterator[Finding]:
    (total,) = [line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in line]
    if needs.host > int(total) * 1024:
        what = (
            f"offloading puts about {needs.host / GIB:.0f} GiB into this node's {int(total) / 2**20:.0f} GiB of memory"
        )
        yield Finding(what, "a node with more memory, or no ...param_offload and ...optimizer_offload")


def gpus_here() -> list[float]:
    """GiB of each of NVIDIA's GPUs in this machine."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return []
    return [int(line) / 1024 for line in said.stdout.split()] if said.returncode == 0 else []


def free_disk(folder: str) -> int:
    """Bytes free where a folder is, or will be made."""
    place = Path(folder).expanduser().absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
