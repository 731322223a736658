"""Puts the method into OpenRLHF's experience maker and trainer, as soon as OpenRLHF's modules are imported."""

import functools
import importlib
import importlib.util
import logging
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import wrapt
from torch import Tensor

from cw_plugin.accelerate_batches import joined
from cw_plugin.errors import HostError
from cw_plugin.method_file import write_method
from cw_plugin.openrlhf_integration.accepted_settings import (
    ADVANTAGES,
    STEP,
    check,
    check_resumed,
    other_shape,
    require,
)
from cw_plugin.options import Options
from cw_plugin.records.write import Batch
from cw_plugin.whole_batch import WholeBatchRun, of_responses

MAKER, TRAINER = "openrlhf.trainer.ppo_utils.experience_maker", "openrlhf.trainer.ppo_trainer"
_logger = logging.getLogger(MAKER)  # OpenRLHF writes what it gets to the run's log


@functools.cache
def install() -> None:
    """Put the method into this process, for Ray's ``worker_process_setup_hook``. It imports nothing of OpenRLHF. If
    OpenRLHF is not installed, or has no experience maker or trainer where they are expected, it is a HostError."""
    found = importlib.util.find_spec("openrlhf")
    folder = Path(found.origin).parent if found and found.origin else None
    for module, change in ((MAKER, _change_maker), (TRAINER, _change_trainer)):
        if folder is None or not (folder.parent / Path(*module.split("."))).with_suffix(".py").exists():
            raise HostError(other_shape(f"there is no {module}"))
        wrapt.register_post_import_hook(change, module)


class _Reweighter:
    """The method in one trainer, and the step that it is at."""

    def __init__(self, maker: Any) -> None:
        values = check(maker.strategy.args)
        options = Options.from_environment()
        check_resumed(values, options)
        write_method(Path(values["checkpoints"]), options, _logger)
        self.samples = values["samples"]
        self.step: int | None = None
        self.run = WholeBatchRun(Path(values["folder"]), maker.tokenizer, _logger)

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
    require(maker, *ADVANTAGES)

    @wrapt.patch_function_wrapper(maker, "__init__")
    def begin(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> None:
        wrapped(*args, **kwargs)
        maker.cw_grpo = _Reweighter(maker)

    @wrapt.patch_function_wrapper(maker, "compute_advantages_and_returns")
    @torch.no_grad()
    def reweight(wrapped: Any, maker: Any, args: Any, kwargs: Any) -> Any:
        experiences = wrapped(*args, **kwargs)
        maker.cw_grpo.reweight(experiences)
        return experiences


def _change_trainer(module: ModuleType) -> None:
    base = module.BasePPOTrainer
    require(base, *STEP)
    plain = base.train_step

    # A plain function: an actor that starts another sends it by its name, and a wrapt proxy as what it wraps.
    @functools.wraps(plain)
    def train_step(trainer: Any, rollout_samples: Any, global_step: int) -> Any:
        trainer.experience_maker.cw_grpo.step = global_step + 1
        return plain(trainer, rollout_samples, global_step)

    base.train_step = train_step


def installed() -> bool:
    """Whether the hook has run in this process."""
    return install.cache_info().currsize > 0
