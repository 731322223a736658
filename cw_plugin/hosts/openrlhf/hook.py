"""Puts the method into OpenRLHF's experience maker and trainer, as soon as OpenRLHF's modules are imported."""

import functools
import importlib.util
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import wrapt
from torch import Tensor

from cw_plugin.batch import Batch, Tokenizer, joined, of_responses
from cw_plugin.hosts.host import OPENRLHF
from cw_plugin.hosts.openrlhf.needs import ADVANTAGES, MAKER, TRAIN_STEP, TRAINER
from cw_plugin.hosts.openrlhf.refused_settings import CHECKPOINTS, FOLDER, SAMPLES, check, has_checkpoint
from cw_plugin.options import Options
from cw_plugin.run import Run

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_trainer import BasePPOTrainer
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

# What wrapt passes to the function that stands around OpenRLHF's.
Wrapped = Callable[..., Any]
Args = tuple[object, ...]
Kwargs = dict[str, object]

_logger = logging.getLogger(MAKER)  # OpenRLHF writes what it gets to the run's log


@functools.cache
def install() -> None:
    """Put the method into this process, for Ray's ``worker_process_setup_hook``. It imports nothing of OpenRLHF.

    Raises:
        HostError: OpenRLHF is not installed, or has no experience maker or trainer where they are expected.
    """
    _require_file(MAKER)
    wrapt.register_post_import_hook(_change_maker, MAKER)
    _require_file(TRAINER)
    wrapt.register_post_import_hook(_change_trainer, TRAINER)


def _require_file(module: str) -> None:
    """Raise HostError unless the installed OpenRLHF has a module, which is not imported."""
    package = importlib.util.find_spec("openrlhf")
    path = Path(*module.split(".")).with_suffix(".py")
    if package is None or package.origin is None or not (Path(package.origin).parents[1] / path).exists():
        raise OPENRLHF.misfit(f"there is no {module}")


class _Reweighter:
    """The method in one trainer, and the step that it is at."""

    def __init__(self, maker: "RemoteExperienceMaker") -> None:
        args, options = maker.strategy.args, Options.from_environment()
        check(args, options)
        self.samples = SAMPLES.value(args)
        self.tokenizer = maker.tokenizer
        self.step = 0  # outside of training
        self.run = Run(options, Path(FOLDER.value(args)), _logger)
        self.run.begin(Path(CHECKPOINTS.value(args)), has_checkpoint(args))

    def reweight(self, experiences: "Sequence[Experience]") -> None:
        """Put w~ A in place of A in every experience, and the metrics into its info."""
        reweighted = self.run.reweight(_batch(experiences, self.samples, self.tokenizer), self.step)
        weighted, metrics = reweighted.advantages, reweighted.metrics
        sizes = [len(experience.index) for experience in experiences]
        for experience, size in zip(experiences, sizes, strict=True):
            experience.info |= {name: torch.full((size,), float(value)) for name, value in metrics.items()}
        if weighted is None:
            return
        for experience, part in zip(experiences, torch.split(weighted, sizes), strict=True):
            # A copy: Ray would send a view with the whole batch.
            dtype, width = experience.advantages.dtype, experience.action_mask.shape[1]
            experience.advantages = part[:, :width].to(dtype, copy=True)


def _batch(experiences: "Sequence[Experience]", samples: int, tokenizer: Tokenizer) -> Batch:
    """The rows of all experiences; ``samples`` of them belong to a prompt."""
    mask = _rows(experiences, "action_mask") != 0
    index = torch.tensor([number for experience in experiences for number in experience.index])
    return Batch(
        log_probs=_rows(experiences, "action_log_probs").float(),
        advantages=of_responses(_rows(experiences, "advantages"), mask),
        response_mask=mask,
        group=index // samples,
        rewards=torch.cat([experience.rewards for experience in experiences]).float(),
        read_sequences=functools.partial(_sequences, experiences, mask),
        tokenizer=tokenizer,
    )


def _rows(experiences: "Sequence[Experience]", name: str) -> Tensor:
    return joined([getattr(experience, name) for experience in experiences])


def _sequences(experiences: "Sequence[Experience]", mask: Tensor, rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Token ids of prompt and response for some rows. A token's mask stands one place further left than the token."""
    ids, starts = _rows(experiences, "sequences"), mask.int().argmax(1)
    return [(ids[row, : starts[row] + 1], ids[row, 1:]) for row in rows]


def _change_maker(module: ModuleType) -> None:
    """Let every experience maker have the method, as ``cw_grpo``, and reweight what it returns."""
    OPENRLHF.require(ADVANTAGES)

    @wrapt.patch_function_wrapper(module, "RemoteExperienceMaker.__init__")
    def begin(of_openrlhf: Wrapped, maker: "RemoteExperienceMaker", args: Args, kwargs: Kwargs) -> None:
        of_openrlhf(*args, **kwargs)
        maker.cw_grpo = _Reweighter(maker)

    @wrapt.patch_function_wrapper(module, ADVANTAGES.name)
    @torch.no_grad()
    def reweight(of_openrlhf: Wrapped, maker: "RemoteExperienceMaker", args: Args, kwargs: Kwargs) -> object:
        experiences = of_openrlhf(*args, **kwargs)
        maker.cw_grpo.reweight(experiences)
        return experiences


def _change_trainer(module: ModuleType) -> None:
    """Let the trainer tell its experience maker the step."""
    base = module.BasePPOTrainer
    OPENRLHF.require(TRAIN_STEP)
    plain = base.train_step

    # A plain function: an actor that starts another sends it by its name, and a wrapt proxy as what it wraps.
    @functools.wraps(plain)
    def train_step(trainer: "BasePPOTrainer", rollout_samples: object, global_step: int) -> object:
        trainer.experience_maker.cw_grpo.step = global_step + 1
        return plain(trainer, rollout_samples, global_step)

    base.train_step = train_step
