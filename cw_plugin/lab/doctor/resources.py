"""The checks of memory and disk: what a run needs, against what a GPU, this node and its disk have."""

import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from cw_plugin.errors import NotCalculatedError
from cw_plugin.files import free_disk, is_remote
from cw_plugin.hosts.verl.refused_settings import ACTOR, uses_loss
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.doctor.memory.estimate import checkpoints_after, estimate
from cw_plugin.memory.stages import GIB, ROOM, SOLD_AS, VLLM_WORK, Estimate, Stage, shortage

SHARE = "actor_rollout_ref.rollout.gpu_memory_utilization"
_ASSUMED = 80  # GB, of the GPUs that the recipes are for, where there is none


def check_memory(config: DictConfig) -> Iterator[Finding]:
    """Whether a run fits the GPUs of this machine and its memory; where there are no GPUs, GPUs of 80 GB."""
    if config.trainer.device == "cpu":
        return
    gpus = gpus_here()
    size, name = (min(gpus), "of this machine") if gpus else (SOLD_AS[_ASSUMED], f"of {_ASSUMED} GB")
    try:
        needs = estimate(config, size)
    except NotCalculatedError as error:
        problem = f"{error.problem}, so this check is left out"
        yield Finding(problem, "see in the first step how much of its memory a GPU uses", fatal=False)
        return
    yield from compare(config, needs, size, name)
    if gpus:
        yield from _check_node(needs)


def check_memory_here(config: DictConfig) -> Iterator[Finding]:
    """As check_memory, if this machine has GPUs: a script may start on a machine that trains nothing itself."""
    if gpus_here():
        yield from check_memory(config)


def check_disk(config: DictConfig) -> Iterator[Finding]:
    """Whether the checkpoints that a run has yet to write fit where it writes them.

    verl keeps all unless told otherwise. A run that goes on deletes none of those that are there.
    """
    folder = config.trainer.default_local_dir
    if config.trainer.device == "cpu" or is_remote(folder):
        return
    try:
        needs = estimate(config, SOLD_AS[_ASSUMED])
    except NotCalculatedError as error:
        problem = f"{error.problem}, nor how large its checkpoints are, so this check is left out"
        yield Finding(problem, "see how large the first checkpoint is", fatal=False)
        return
    free = free_disk(folder)
    yet_to_write = checkpoints_after(config, _saved_step(folder))
    number = min(yet_to_write, needs.checkpoints)
    wanted = needs.checkpoint * number
    if free >= wanted:
        return
    problem = (
        f"{number} checkpoints of {needs.checkpoint / 1e9:.0f} GB need {wanted / 1e9:.0f} GB, and "
        f"{folder} has {free / 1e9:.0f} GB free"
    )
    fix = "trainer.default_local_dir=<a folder on a larger disk>"
    fitting = int(free // needs.checkpoint)
    if fitting > 1:  # of 1, verl writes the new one before it deletes the old one
        fix += f", or trainer.max_actor_ckpt_to_keep={fitting}"
    # verl may drop rows of the data, and so write fewer; but not so few that it has none to delete.
    is_certain = config.trainer.total_training_steps is not None or fitting == 0 or number < yet_to_write
    yield Finding(problem, fix, fatal=is_certain)


def _saved_step(folder: str) -> int:
    """The last step of which the folder has a checkpoint; 0 if it has none."""
    names = [path.parent.name for path in Path(folder).expanduser().glob("global_step_*/actor")]
    steps = [name.removeprefix("global_step_") for name in names]
    return max((int(step) for step in steps if step.isdecimal()), default=0)


def compare(config: DictConfig, needs: Estimate, gpu: float, name: str) -> Iterator[Finding]:
    """What does not fit in a GPU of ``gpu`` GiB, called ``name``, with the room of :data:`ROOM`."""
    for stage in needs.stages:
        if problem := shortage(stage, gpu, name):
            yield Finding(problem, _fix(config, needs, stage, gpu), fatal=stage.total > gpu * GIB)
    share = config.actor_rollout_ref.rollout.gpu_memory_utilization * gpu * GIB
    if share >= needs.vllm:
        return
    least = 2.0 * needs.model / config.actor_rollout_ref.rollout.tensor_model_parallel_size + VLLM_WORK
    fatal = share < least
    wanted = f"{least / GIB:.0f} for its weights alone" if fatal else f"{needs.vllm / GIB:.0f} to answer all at once"
    problem = f"{SHARE} gives vLLM {share / GIB:.0f} GiB, and it needs about {wanted}"
    yield Finding(problem, f"{SHARE}={math.ceil(needs.vllm / (gpu * GIB) * 100) / 100}", fatal)


def _fix(config: DictConfig, needs: Estimate, stage: Stage, gpu: float) -> str:
    """The override that makes room, by what fills the stage."""
    limit = ROOM * gpu * GIB
    engine = f"{ACTOR}.megatron" if needs.engine == "Megatron" else f"{ACTOR}.fsdp_config"
    if "vLLM" in stage.parts:
        others = stage.total - stage.parts["vLLM"]
        if needs.vllm + others <= limit:
            return f"{SHARE}={math.floor((limit - others) / (gpu * GIB) * 100) / 100}"
        return f"{engine}.param_offload=True {engine}.optimizer_offload=True"
    if stage.name == "training" and needs.engine == "Megatron" and not _recomputes_layers(config):
        recompute = f"{engine}.override_transformer_config.recompute"
        return f"{recompute}_granularity=full {recompute}_method=uniform {recompute}_num_layers=1"
    if stage.name == "log-probs" and not config.actor_rollout_ref.actor.entropy_from_logits_with_chunking:
        return f"{ACTOR}.entropy_from_logits_with_chunking=True"
    room = limit - (stage.total - stage.parts["activations"])
    smaller = _smaller_micro_batch(config, stage, room / stage.parts["activations"])
    if smaller:
        return smaller
    if needs.engine == "Megatron":
        return f"a larger {engine}.tensor_model_parallel_size"
    if config.actor_rollout_ref.actor.strategy == "fsdp2":
        return f"{engine}.offload_policy=True"
    # FSDP1 does not read the last of these.
    return f"{ACTOR}.strategy=fsdp2 {engine}.strategy=fsdp2 {engine}.offload_policy=True"


def _smaller_micro_batch(config: DictConfig, stage: Stage, share: float) -> str | None:
    """The override that makes a micro-batch this share of what it is; None if that is too small."""
    if stage.name == "log-probs":
        settings, prefix = config.actor_rollout_ref.rollout, "log_prob"
        name, is_dynamic = "actor_rollout_ref.rollout", settings.log_prob_use_dynamic_bsz
    else:
        settings, prefix = config.actor_rollout_ref.actor, "ppo"
        name, is_dynamic = ACTOR, settings.use_dynamic_bsz
    if is_dynamic:
        limit = f"{prefix}_max_token_len_per_gpu"
        tokens = int(settings[limit] * share)
        longest = config.data.max_prompt_length + config.data.max_response_length
        return f"{name}.{limit}={tokens}" if tokens >= longest else None
    limit = f"{prefix}_micro_batch_size_per_gpu"
    responses = settings[limit]
    # A divisor of what it is, because verl divides the responses of a GPU by it.
    divisors = [size for size in range(1, responses) if responses % size == 0 and size <= responses * share]
    # The loss cw_grpo compares the responses of a micro-batch with each other.
    least = 2 if prefix == "ppo" and uses_loss(config) else 1
    return f"{name}.{limit}={divisors[-1]}" if divisors and divisors[-1] >= least else None


def _recomputes_layers(config: DictConfig) -> bool:
    transformer = config.actor_rollout_ref.actor.megatron.override_transformer_config
    return bool(transformer.recompute_granularity == "full")


def _check_node(needs: Estimate) -> Iterator[Finding]:
    """Whether what is offloaded fits the memory of this node."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    (kibibytes,) = [int(line.split()[1]) for line in lines if "MemTotal" in line]
    total = 1024 * kibibytes
    if needs.host > total:
        problem = f"offloading puts about {needs.host / GIB:.0f} GiB into this node's {total / GIB:.0f} GiB of memory"
        yield Finding(problem, "a node with more memory, or no ...param_offload and ...optimizer_offload")


def gpus_here() -> list[float]:
    """The GiB of each of NVIDIA's GPUs in this machine."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return []
    if result.returncode != 0:
        return []
    lines = [line.strip() for line in result.stdout.splitlines()]
    return [int(line) / 1024 for line in lines if line.isdecimal()]  # [N/A] of a GPU that shares the machine's memory
