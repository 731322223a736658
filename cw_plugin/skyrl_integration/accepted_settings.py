"""What is refused before training: a SkyRL without what the weights need, and settings that lose the weights."""

import inspect
from pathlib import Path
from typing import Any

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.method_file import refuse_other_method
from cw_plugin.options import Options

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
    "regular", "dual_clip", "gspo", "sapo", "cispo", "clip_cov", "kl_cov", "rollout_is", "dppo", "importance_sampling",
)  # fmt: skip

LATEST = "latest_ckpt_global_step.txt"  # where SkyRL keeps the step that it resumes from


def check(cfg: Any) -> None:
    """Refuse a SkyRL of another shape (HostError), and settings or options under which the weights would not be the
    paper's, or would be lost (OptionsError). Estimators and losses of one's own are not refused."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimator, PolicyLossType
    from skyrl.train.trainer import RayPPOTrainer

    for method, parameters in NEEDED.items():
        found = getattr(RayPPOTrainer, method, None)
        if found is None or list(inspect.signature(found).parameters) != parameters:
            raise HostError(other_shape(f"RayPPOTrainer has no {method}({', '.join(parameters)})"))
    options, algorithm = Options.from_environment(), cfg.trainer.algorithm
    estimator, loss = str(algorithm.advantage_estimator), str(algorithm.policy_loss_type)
    if estimator in set(AdvantageEstimator) - set(GROUPED):
        raise OptionsError(
            f"trainer.algorithm.advantage_estimator={estimator} has no prompt groups, which CW-GRPO needs; use "
            f"{', '.join(GROUPED)}"
        )
    if loss in set(PolicyLossType) - set(PER_TOKEN):
        raise OptionsError(
            f"trainer.algorithm.policy_loss_type={loss} does not multiply a token by its advantage, so the loss would "
            f"lose the weights; use {', '.join(PER_TOKEN)}"
        )
    if cfg.generator.n_samples_per_prompt < 2:
        raise OptionsError(
            f"generator.n_samples_per_prompt={cfg.generator.n_samples_per_prompt} leaves one response in a prompt "
            "group; use 2 or more"
        )
    if algorithm.use_kl_in_reward:
        raise OptionsError(
            "trainer.algorithm.use_kl_in_reward=true puts a KL penalty into the reward, which CW-GRPO would reweight "
            "as an advantage; set trainer.algorithm.use_kl_loss=true in its place"
        )
    if algorithm.advantage_batch_normalize:
        raise OptionsError(
            "trainer.algorithm.advantage_batch_normalize=true subtracts the mean of the reweighted advantages, so they "
            "would not be the paper's; set it to false"
        )
    if not is_local(cfg.trainer.export_path) and options.record_every:
        raise OptionsError(
            f"trainer.export_path={cfg.trainer.export_path} is not a folder of this machine, which token records need; "
            "name one, or set CW_GRPO_RECORD_EVERY=0"
        )
    checkpoints = cfg.trainer.ckpt_path
    if is_local(checkpoints) and cfg.trainer.resume_mode == "latest" and Path(checkpoints, LATEST).exists():
        refuse_other_method(Path(checkpoints), options)


def is_local(path: str) -> bool:
    """Whether it is a folder of this machine, not an address such as ``s3://...``."""
    return "://" not in path


def other_shape(what: str) -> str:
    """What a HostError says about a SkyRL that does not fit."""
    return f"this SkyRL does not fit, because {what}; install skyrl {TESTED}"
