"""CW-GRPO for OpenRLHF: its PPO trainer, trained on w~ A in place of A. OpenRLHF's code runs unchanged.

A run asks for the method by the hook: :func:`install`, which Ray calls in each of its workers. Either a job names it::

    ray job submit --runtime-env-json '{"worker_process_setup_hook": "cw_plugin.openrlhf_integration.install"}' \
        -- python3 -m openrlhf.cli.train_ppo_ray ...

or this module starts the training, with the arguments of train_ppo_ray, and fails if Ray's workers lack the hook::

    python -m cw_plugin.openrlhf_integration ...

OpenRLHF's command line takes no options of ours, so they are environment variables (:mod:`cw_plugin.options`). A job
passes them to Ray's workers under ``"env_vars"``; this module passes on those that it was started with.

Weights are computed in the trainer's process, over the whole batch, before its rows are spread over the actors. A
prompt group is ``index // n_samples_per_prompt``, as in OpenRLHF's own advantages.
"""

import functools
import importlib
import importlib.util
import inspect
import logging
import runpy
import sys
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import wrapt
from torch import Tensor

from cw_plugin.errors import CWGRPOError, HostError, OptionsError
from cw_plugin.method_file import refuse_other_method, write_method
from cw_plugin.options import Options, variables
from cw_plugin.processes import joined
from cw_plugin.recording import Batch
from cw_plugin.whole_batch import Run, of_responses

HOOK = "cw_plugin.openrlhf_integration.install"
MAKER, TRAINER = "openrlhf.trainer.ppo_utils.experience_maker", "openrlhf.trainer.ppo_trainer"
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
_ADVANTAGES = "compute_advantages_and_returns", ["self", "experiences"]
_STEP = "train_step", ["self", "rollout_samples", "global_step"]
_logger = logging.getLogger(MAKER)  # OpenRLHF writes what it gets to the run's log


@functools.cache
def install() -> None:
    """Put the method into this process, for Ray's ``worker_process_setup_hook``. It imports nothing of OpenRLHF. If
    OpenRLHF is not installed, or has no experience maker or trainer where they are expected, it is a HostError."""
    found = importlib.util.find_spec("openrlhf")
    folder = Path(found.origin).parent if found and found.origin else None
    for module, change in ((MAKER, _change_maker), (TRAINER, _change_trainer)):
        if folder is None or not (folder.parent / Path(*module.split("."))).with_suffix(".py").exists():
            raise HostError(_other_shape(f"there is no {module}"))
        wrapt.register_post_import_hook(change, module)


def check(args: Any) -> dict[str, Any]:
    """Refuse arguments of train_ppo_ray under which the weights would not be the paper's, or would be lost
    (OptionsError), and an OpenRLHF that lacks one (HostError). The values are returned: among them the number of
    ``samples`` to a prompt, and the ``folder`` of the run."""
    flags = {name: names[0 if hasattr(args, "algo") else 1] for name, names in _ARGUMENTS.items()}
    try:
        values = {name: attrgetter(flag)(args) for name, flag in flags.items()}
    except AttributeError as error:
        raise HostError(_other_shape(f"an argument is missing: {error}")) from error
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


class _Run:
    """The method in one trainer, and the step that it is at."""

    def __init__(self, maker: Any) -> None:
        values = check(maker.strategy.args)
        options = Options.from_environment()
        check_resumed(values, options)
        write_method(Path(values["checkpoints"]), options, _logger)
        self.samples = values["samples"]
        self.step: int | None = None
        self.run = Run(Path(values["folder"]), maker.tokenizer, _logger)

    def reweight(self, experiences: Sequence[Any]) -> None:
        """Put w~ A in place of A in every experience, and the metrics into its info."""

        def rows(name: str) -> Tensor:
            return joined([getattr(experience, name) for experience in experiences])

        mask = rows("action_mask") != 0

        def sequences(chosen: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
            # The mask of a token stands one place further to the left than the token.
            ids, starts = rows("sequences"), mask.int().argmax(1)
            return [(ids[row, : starts[row] + 1], ids[row, 1:]) for row in chosen]

        batch = Batch(
            log_probs=rows("action_log_probs").float(),
            advantages=of_responses(rows("advantages"), mask),
            response_mask=mask,
            group=torch.tensor([i for experience in experiences for i in experience.index]) // self.samples,
            rewards=torch.cat([experience.rewards for experience in experiences]).float(),
            sequences=sequences,
        )
        weighted, metrics = self.run.reweight(batch, self.step)
        sizes = [len(experience.index) for experience in experiences]
        for experience, size in zip(experiences, sizes, strict=True):
            for name, value in metrics.items():
                experience.info[name] = torch.full((size,), float(value))
        if weighted is None:
            return
        for experience, part in zip(experiences, weighted.split(sizes), strict=True):
            # A copy: Ray would send a view with the whole batch.
            dtype, width = experience.advantages.dtype, experience.action_mask.shape[1]
            experience.advantages = part[:, :width].to(dtype, copy=True)


def _change_maker(module: ModuleType) -> None:
    maker = module.RemoteExperienceMaker
    _require(maker, *_ADVANTAGES)

    @wrapt.patch_function_wrapper(maker, "__init__")
    def begin(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        maker.cw_grpo = _Run(maker)

    @wrapt.patch_function_wrapper(maker, "compute_advantages_and_returns")
    @torch.no_grad()
    def weigh(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        experiences = wrapped(*args, **kwargs)
        maker.cw_grpo.reweight(experiences)
        return experiences


def _change_trainer(module: ModuleType) -> None:
    base = module.BasePPOTrainer
    _require(base, *_STEP)
    plain = base.train_step

    # A plain function: an actor that starts another sends it by its name, and a wrapt proxy as what it wraps.
    @functools.wraps(plain)
    def train_step(trainer: Any, rollout_samples: Any, global_step: int) -> Any:
        trainer.experience_maker.cw_grpo.step = global_step + 1
        return plain(trainer, rollout_samples, global_step)

    base.train_step = train_step


def _require(owner: type, method: str, parameters: list[str]) -> None:
    found = getattr(owner, method, None)
    has = [name for name in inspect.signature(found).parameters if name[0] != "_"] if found else []  # Ray adds some
    if has != parameters:
        raise HostError(_other_shape(f"{owner.__name__} has no {method}({', '.join(parameters)})"))


def _other_shape(what: str) -> str:
    return f"this OpenRLHF does not fit, because {what}; install openrlhf {TESTED[0]} to {TESTED[1]}"


def installed() -> bool:
    """Whether the hook has run in this process."""
    return install.cache_info().currsize > 0


def main() -> None:
    """Start openrlhf.cli.train_ppo_ray with this process's arguments, and the method in Ray's workers."""
    if importlib.util.find_spec("openrlhf") is None:
        sys.exit(f"cw_grpo: {sys.executable} has no openrlhf; install openrlhf {TESTED[0]} to {TESTED[1]}")
    import ray

    @wrapt.patch_function_wrapper(ray, "init")
    def with_hook(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        environment = dict(kwargs.pop("runtime_env", None) or {})
        environment |= {"worker_process_setup_hook": HOOK, "env_vars": environment.get("env_vars", {}) | variables()}
        started = wrapped(*args, runtime_env=environment, **kwargs)
        if not ray.get(ray.remote(num_cpus=0)(installed).remote()):
            raise HostError(
                f"Ray's workers did not run {HOOK}, so they would train plain GRPO; install cw_plugin on every node"
            )
        return started

    @wrapt.patch_function_wrapper("openrlhf.utils", "get_strategy")
    def with_checks(wrapped: Any, _: Any, args: Any, kwargs: Any) -> Any:
        strategy = wrapped(*args, **kwargs)
        check_resumed(check(strategy.args), Options.from_environment())
        return strategy

    try:
        Options.from_environment()
        # Its shape is checked before Ray starts. This process stays as it is: it sends its classes to Ray's workers.
        trainer = importlib.import_module(TRAINER)
        _require(trainer.RemoteExperienceMaker, *_ADVANTAGES)
        _require(trainer.BasePPOTrainer, *_STEP)
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)
    except CWGRPOError as error:
        sys.exit(f"cw_grpo: {error}")


if __name__ == "__main__":
    # Ray's workers import `installed` by name.
    from cw_plugin import openrlhf_integration

    openrlhf_integration.main()
