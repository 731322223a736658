"""What is refused: settings of SkyRL that lose the weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from cw_plugin.errors import OptionsError
from cw_plugin.files import is_remote
from cw_plugin.hosts.host import SKYRL
from cw_plugin.hosts.skyrl.needs import NEEDS
from cw_plugin.method_file import refuse_other_method
from cw_plugin.options import Options

if TYPE_CHECKING:
    from skyrl.train.config import SkyRLTrainConfig

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
    """Refuse what would not be the paper's method; with the weights none, there are no weights to lose.

    Estimators and losses that a user has registered are not refused.

    Raises:
        HostError: SkyRL lacks what the weights need.
        OptionsError: settings or options under which the weights would not be the paper's, or would be lost.
    """
    SKYRL.require(*NEEDS)
    options = Options.from_environment()
    options.refuse_without_entropies("SkyRL")
    _check_groups(cfg)
    if options.weights != "none":
        _check_weights_are_kept(cfg)
    if options.record_every and is_remote(cfg.trainer.export_path):
        raise OptionsError(
            f"trainer.export_path={cfg.trainer.export_path} is not a folder of this machine, which token records need",
            fix="name one, or set CW_GRPO_RECORD_EVERY=0",
        )
    if has_checkpoint(cfg):  # the run would refuse it, too, but in a worker
        refuse_other_method(Path(cfg.trainer.ckpt_path), options)


def has_checkpoint(cfg: "SkyRLTrainConfig") -> bool:
    """Whether SkyRL has saved a checkpoint in the run's folder, if that is on this machine."""
    return not is_remote(cfg.trainer.ckpt_path) and Path(cfg.trainer.ckpt_path, LATEST).exists()


def resumed_from(cfg: "SkyRLTrainConfig") -> Path | None:
    """The folder of the checkpoint that a run names with resume_path, if that is on this machine."""
    path = cfg.trainer.resume_path
    if cfg.trainer.resume_mode != "from_path" or not path or is_remote(path):
        return None
    return Path(path).resolve().parent


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
    if getattr(algorithm, "enable_sample_support_replay", False):  # not in SkyRL 0.3.0
        raise OptionsError(
            "trainer.algorithm.enable_sample_support_replay=true takes log-probs over the tokens that sampling allows, "
            "so the weights would not be the paper's",
            fix="set it to false",
        )
