"""What is refused: a version of SkyRL without what the weights need, and settings that lose the weights."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.files import is_remote
from cw_plugin.method_file import refuse_other_method
from cw_plugin.options import Options

if TYPE_CHECKING:
    from skyrl.train.config import SkyRLTrainConfig

TESTED = "0.3.0"

# The methods of RayPPOTrainer that CWGRPOTrainer extends, with their parameters.
NEEDED = {
    "compute_advantages_and_returns": ["self", "data"],
    "train_critic_and_policy": ["self", "data"],
    "_skip_policy_forward": ["self", "training_input"],
}
# Of SkyRL's own estimators, those that compare the samples of a prompt; and of its losses, those that multiply the
# gradient of a token's log-prob by that token's advantage.
GROUPED = ("grpo", "rloo", "maxrl")
PER_TOKEN = (
    "regular",
    "dual_clip",
    "gspo",
    "sapo",
    "cispo",
    "clip_cov",
    "kl_cov",
    "rollout_is",
    "dppo",
    "importance_sampling",
)

LATEST = "latest_ckpt_global_step.txt"  # where SkyRL keeps the step that it resumes from


def check(cfg: "SkyRLTrainConfig") -> None:
    """Refuse what would not be the paper's method; with the kernel none, there are no weights to lose.

    Estimators and losses that a user has registered are not refused.

    Raises:
        HostError: SkyRL lacks what the weights need.
        OptionsError: settings or options under which the weights would not be the paper's, or would be lost.
    """
    from skyrl.train.trainer import RayPPOTrainer

    for method, parameters in NEEDED.items():
        function = getattr(RayPPOTrainer, method, None)
        if function is None or list(inspect.signature(function).parameters) != parameters:
            raise other_shape(f"RayPPOTrainer has no {method}({', '.join(parameters)})")
    options = Options.from_environment()
    _check_groups(cfg)
    if options.kernel != "none":
        _check_weights_are_kept(cfg)
    if options.record_every and is_remote(cfg.trainer.export_path):
        raise OptionsError(
            f"trainer.export_path={cfg.trainer.export_path} is not a folder of this machine, which token records need",
            fix="name one, or set CW_GRPO_RECORD_EVERY=0",
        )
    checkpoints = cfg.trainer.ckpt_path
    if not is_remote(checkpoints) and cfg.trainer.resume_mode == "latest" and Path(checkpoints, LATEST).exists():
        refuse_other_method(Path(checkpoints), options)


def _check_groups(cfg: "SkyRLTrainConfig") -> None:
    """Raise OptionsError unless advantages compare several responses to a prompt."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimator

    estimator = str(cfg.trainer.algorithm.advantage_estimator)
    if estimator in set(AdvantageEstimator) - set(GROUPED):
        raise OptionsError(
            f"trainer.algorithm.advantage_estimator={estimator} has no prompt groups, which CW-GRPO needs",
            fix=f"use {', '.join(GROUPED)}",
        )
    samples = cfg.generator.n_samples_per_prompt
    if samples < 2:
        raise OptionsError(
            f"generator.n_samples_per_prompt={samples} leaves one response in a prompt group", fix="use 2 or more"
        )


def _check_weights_are_kept(cfg: "SkyRLTrainConfig") -> None:
    """Raise OptionsError if the loss would lose the weights, or something changes the advantages after them."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossType

    algorithm = cfg.trainer.algorithm
    loss = str(algorithm.policy_loss_type)
    if loss in set(PolicyLossType) - set(PER_TOKEN):
        raise OptionsError(
            f"trainer.algorithm.policy_loss_type={loss} does not multiply a token by its advantage, so the loss would "
            "lose the weights",
            fix=f"use {', '.join(PER_TOKEN)}",
        )
    if algorithm.advantage_batch_normalize:
        raise OptionsError(
            "trainer.algorithm.advantage_batch_normalize=true subtracts the mean of the reweighted advantages, so they "
            "would not be the paper's",
            fix="set it to false",
        )


def other_shape(problem: str) -> HostError:
    """The error for a version of SkyRL that does not fit."""
    return HostError(f"this version of SkyRL does not fit, because {problem}", fix=f"install skyrl {TESTED}")
