"""What is refused: settings of OpenRLHF that lose the weights."""

from argparse import Namespace
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from cw_plugin.errors import OptionsError
from cw_plugin.hosts.host import OPENRLHF
from cw_plugin.method_file import refuse_other_method
from cw_plugin.options import Options

GROUPED = ("group_norm", "dr_grpo", "rloo", "reinforce_baseline")  # estimators that compare the samples of a prompt


@dataclass(frozen=True)
class Flag:
    """An argument of train_ppo_ray, by its name from OpenRLHF 0.10.2 on, and before."""

    nested: str
    flat: str

    def of(self, args: Namespace) -> str:
        """The name that these arguments have."""
        return self.nested if hasattr(args, "algo") else self.flat

    def value(self, args: Namespace) -> Any:
        """What these arguments say; a HostError if OpenRLHF has no such argument."""
        try:
            return attrgetter(self.of(args))(args)
        except AttributeError as error:
            raise OPENRLHF.misfit(f"an argument is missing: {error}") from error


ESTIMATOR = Flag("algo.advantage.estimator", "advantage_estimator")
SAMPLES = Flag("rollout.n_samples_per_prompt", "n_samples_per_prompt")
KL_COEFFICIENT = Flag("algo.kl.init_coef", "init_kl_coef")
KL_LOSS = Flag("algo.kl.use_loss", "use_kl_loss")
LOSS = Flag("actor.policy_loss_type", "policy_loss_type")
FOLDER = Flag("ckpt.output_dir", "save_path")
CHECKPOINTS = Flag("ckpt.path", "ckpt_path")


def has_checkpoint(args: Namespace) -> bool:
    """Whether OpenRLHF has saved a checkpoint in the folder that it resumes from."""
    return Path(CHECKPOINTS.value(args), "_actor").exists()


def check(args: Namespace, options: Options) -> None:
    """Refuse arguments of train_ppo_ray under which the weights would not be the paper's, or would be lost.

    With the weights none, there are no weights to lose.

    Raises:
        OptionsError: such an argument, with the one to use; or checkpoints of another method.
        HostError: OpenRLHF lacks an argument.
    """
    estimator, samples, loss = ESTIMATOR.value(args), SAMPLES.value(args), LOSS.value(args)
    kl_coefficient, kl_loss = KL_COEFFICIENT.value(args), KL_LOSS.value(args)
    options.refuse_without_entropies("OpenRLHF")
    if estimator not in GROUPED:
        raise OptionsError(
            f"--{ESTIMATOR.of(args)} {estimator} has no prompt groups, which CW-GRPO needs",
            fix=f"use {', '.join(GROUPED)}",
        )
    if samples < 2:
        raise OptionsError(f"--{SAMPLES.of(args)} {samples} leaves one response in a prompt group", fix="use 2 or more")
    if kl_coefficient > 0 and not kl_loss:
        raise OptionsError(
            f"--{KL_COEFFICIENT.of(args)} {kl_coefficient} puts a KL penalty into the reward, which CW-GRPO would "
            "reweight as an advantage",
            fix=f"add --{KL_LOSS.of(args)}, or set --{KL_COEFFICIENT.of(args)} 0",
        )
    if loss != "ppo" and options.weights != "none":
        raise OptionsError(
            f"--{LOSS.of(args)} {loss} takes one ratio for a response, so the loss would lose the weights",
            fix="use ppo",
        )
    if has_checkpoint(args):  # the run would refuse it, too, but in a worker
        refuse_other_method(Path(CHECKPOINTS.value(args)), options)
