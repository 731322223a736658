"""What is refused before training: an OpenRLHF without what the weights need, and settings that lose the weights."""

import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.method_file import refuse_other_method
from cw_plugin.options import Options

TESTED = ("0.9.10", "0.11.2")  # the oldest and the newest release that the tests run
GROUPED = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline")  # estimators that compare the samples of a prompt

# Arguments of train_ppo_ray: from 0.10 on, and in 0.9.
_ARGUMENTS = {
    "estimator": ("algo.advantage.estimator", "advantage_estimator"),
    "samples": ("rollout.n_samples_per_prompt", "n_samples_per_prompt"),
    "kl_coef": ("algo.kl.init_coef", "init_kl_coef"),
    "kl_loss": ("algo.kl.use_loss", "use_kl_loss"),
    "loss": ("actor.policy_loss_type", "policy_loss_type"),
    "folder": ("ckpt.output_dir", "save_path"),
    "checkpoints": ("ckpt.path", "ckpt_path"),
    "resumes": ("ckpt.load_enable", "load_checkpoint"),
}

# The methods of OpenRLHF that hook.py changes, with their parameters.
ADVANTAGES = "compute_advantages_and_returns", ["self", "experiences"]
STEP = "train_step", ["self", "rollout_samples", "global_step"]


def check(args: Any) -> dict[str, Any]:
    """Refuse arguments of train_ppo_ray under which the weights would not be the paper's, or would be lost
    (OptionsError), and an OpenRLHF that lacks one (HostError). The values are returned: among them the number of
    ``samples`` to a prompt, and the ``folder`` of the run."""
    flags = {name: names[0 if hasattr(args, "algo") else 1] for name, names in _ARGUMENTS.items()}
    try:
        values = {name: attrgetter(flag)(args) for name, flag in flags.items()}
    except AttributeError as error:
        raise HostError(other_shape(f"an argument is missing: {error}")) from error
    shown = {name: f"--{flag} {values[name]}" for name, flag in flags.items()}
    if values["estimator"] not in GROUPED:
        raise OptionsError(f"{shown['estimator']} has no prompt groups, which CW-GRPO needs; use {', '.join(GROUPED)}")
    if values["samples"] < 2:
        raise OptionsError(f"{shown['samples']} leaves one response in a prompt group; use 2 or more")
    if values["kl_coef"] > 0 and not values["kl_loss"]:
        raise OptionsError(
            f"{shown['kl_coef']} puts a KL penalty into the reward, which CW-GRPO would reweight as an advantage; add "
            f"--{flags['kl_loss']}, or set --{flags['kl_coef']} 0"
        )
    if values["loss"] != "ppo":
        raise OptionsError(
            f"{shown['loss']} takes one ratio for a response, so the loss would lose the weights; use ppo"
        )
    return values


def check_resumed(values: dict[str, Any], options: Options) -> None:
    """Refuse to resume checkpoints of another scope or kernel (OptionsError).

    Args:
        values: as :func:`check` returns them.
    """
    if values["resumes"] and Path(values["checkpoints"], "_actor").exists():
        refuse_other_method(Path(values["checkpoints"]), options)


def require(owner: type, method: str, parameters: list[str]) -> None:
    found = getattr(owner, method, None)
    has = [name for name in inspect.signature(found).parameters if name[0] != "_"] if found else []  # Ray adds some
    if has != parameters:
        raise HostError(other_shape(f"{owner.__name__} has no {method}({', '.join(parameters)})"))


def other_shape(what: str) -> str:
    return f"this OpenRLHF does not fit, because {what}; install openrlhf {TESTED[0]} to {TESTED[1]}"
