"""Batches in parts: micro-batches, and rows that several processes hold, for trainers built on accelerate."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from cw_plugin.weights import CovarianceStatistics, reweight

Everyone = tuple[
    Float[Tensor, "all width"], Float[Tensor, " all"], Shaped[Tensor, "all width"], Int[Tensor, " all"]
]  # log-probs, advantages before the weights, mask and number of the prompt group of all processes' rows


def joined(parts: Sequence[Shaped[Tensor, "_ _"]]) -> Shaped[Tensor, "all width"]:
    """The rows of all micro-batches, padded with zeros to the widest."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[1])) for part in parts])


def gather(accelerator: Any, rows: Shaped[Tensor, "rows time"]) -> Shaped[Tensor, "all width"]:
    """The rows of all processes, padded with zeros to the widest."""
    return accelerator.gather(accelerator.pad_across_processes(rows, dim=1))


def reweight_over_processes(
    trainer: Any,
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"],
    mask: Shaped[Tensor, "rows time"],
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics, Everyone]:
    """Weigh the tokens of a batch by whole prompt groups, of which several processes may each hold a part.

    Args:
        trainer: has accelerate's ``accelerator``, ``num_generations`` (responses to a prompt) and ``_cw_options``.
            Every process passes the same number of rows. Where these are joined, responses to a prompt are consecutive.
        log_probs, advantages, mask: of this process's rows, as in :func:`cw_plugin.weights.reweight`.

    Returns:
        ``w~ A`` of this process's rows, the statistics of the whole batch, and the rows of all processes. A
        NonFiniteError is reweight's; its rows are those of all processes.
    """
    accelerator, options = trainer.accelerator, trainer._cw_options
    everyone = gather(accelerator, log_probs.float())
    every_advantage, valid = accelerator.gather(advantages), gather(accelerator, mask)
    device = everyone.device
    if device.type == "mps":  # has no float64
        everyone, every_advantage, valid = everyone.cpu(), every_advantage.cpu(), valid.cpu()
    group = torch.arange(len(everyone)) // trainer.num_generations
    groups = group if options.scope == "group" else None
    weighted, statistics = reweight(everyone, every_advantage, valid, groups, options.kernel)
    rows, width = log_probs.shape
    first = accelerator.process_index * rows
    return weighted[first : first + rows, :width].to(device), statistics, (everyone, every_advantage, valid, group)


def is_due(trainer: Any) -> bool:
    """Whether to record the generation batch at hand: one of the steps that train on it is due."""
    args, step = trainer.args, trainer.state.global_step + 1
    steps = math.ceil(args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps)
    return any(map(trainer._cw_options.is_due, range(step, step + steps)))
