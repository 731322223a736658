"""Batches in parts: micro-batches, and rows that several processes hold, for trainers built on accelerate."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from cw_plugin.errors import CWGRPOError, NonFiniteError, first_line
from cw_plugin.records.write import LIMIT, Batch
from cw_plugin.weights import ADDED, Sums, reweight_and_sum


def joined(parts: Sequence[Shaped[Tensor, "_ _"]]) -> Shaped[Tensor, "all width"]:
    """The rows of all micro-batches, padded with zeros to the widest."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, width - part.shape[1])) for part in parts])


def reweight_over_processes(
    trainer: Any,
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"],
    mask: Shaped[Tensor, "rows time"],
) -> tuple[Float[Tensor, "rows time"], Sums]:
    """Reweight a batch by whole prompt groups, of which several processes may each hold a part.

    Where each process holds whole groups, it reweights its own, and only sums travel. Otherwise, and with scope
    "batch", every process gathers all rows, and reweights all of them (tests/benchmarks/scale.md says what that costs).
    If one process fails, all of them raise its error.

    Args:
        trainer: has accelerate's ``accelerator``, ``num_generations`` (responses to a prompt) and ``_cw_options``.
            Every process passes the same number of rows. Where these are joined, responses to a prompt are consecutive.
        log_probs, advantages, mask: of this process's rows, as in :func:`cw_plugin.weights.reweight`.

    Returns:
        ``w~ A`` of this process's rows, and the sums of the whole batch.

    Raises:
        NonFiniteError, OptionsError: as reweight's, the same in every process. Rows are those of the whole batch.
    """
    accelerator, kernel = trainer.accelerator, trainer._cw_options.kernel
    device, (rows, width) = log_probs.device, log_probs.shape
    first = accelerator.process_index * rows
    own_groups = _holds_whole_groups(trainer, rows)
    if not own_groups:
        log_probs, mask = _gathered(accelerator, log_probs).cpu(), _gathered(accelerator, mask).cpu()
        advantages = accelerator.gather(advantages).cpu()
    group = None if trainer._cw_options.scope == "batch" else _group_numbers(trainer, len(log_probs))
    weighted, sums = log_probs, Sums()
    failure: Exception | None = None
    try:
        weighted, sums = reweight_and_sum(log_probs, advantages, mask, group, kernel)
    except NonFiniteError as error:
        failure = NonFiniteError(error.what, [first + row for row in error.rows]) if own_groups else error
    except Exception as error:
        failure = error
    _raise_in_all(accelerator, device, failure)
    if own_groups:
        return weighted, _added_up(accelerator, device, sums)
    return weighted[first : first + rows, :width].to(device), sums


def _holds_whole_groups(trainer: Any, rows: int) -> bool:
    """Whether the tokens that share statistics are all in one process. Every process knows it, without asking."""
    return trainer._cw_options.scope == "group" and rows % trainer.num_generations == 0


def _group_numbers(trainer: Any, rows: int) -> Int[Tensor, " rows"]:
    return torch.arange(rows) // trainer.num_generations


def _gathered(accelerator: Any, rows: Shaped[Tensor, "rows time"]) -> Shaped[Tensor, "all width"]:
    """The rows of all processes, padded with zeros to the widest."""
    if rows.dtype == torch.bool:  # which accelerate would turn into int64 in those processes alone that pad
        rows = rows.byte()
    return accelerator.gather(accelerator.pad_across_processes(rows, dim=1))


def _raise_in_all(accelerator: Any, device: torch.device, failure: Exception | None) -> None:
    """Raise in every process the error that one or several of them have. None waits for one that has stopped."""
    if accelerator.num_processes == 1:
        if failure is not None:
            raise failure
        return
    failed = torch.tensor(0 if failure is None else 1).to(device)
    dist.all_reduce(failed)
    if not failed.item():
        return
    told = failure
    if failure is not None and not isinstance(failure, CWGRPOError):  # another's error may not survive pickling
        what = f"{type(failure).__name__}: {first_line(failure)}"
        told = CWGRPOError(f"process {accelerator.process_index} failed with {what}")
    of_all: list[CWGRPOError | None] = [None] * accelerator.num_processes
    dist.all_gather_object(of_all, told)
    raise _joined_errors([error for error in of_all if error is not None]) from failure


def _joined_errors(errors: Sequence[CWGRPOError]) -> CWGRPOError:
    """The error that a process with the rows of all would raise."""
    not_finite = [error for error in errors if isinstance(error, NonFiniteError)]
    others = [error for error in errors if not isinstance(error, NonFiniteError)]
    if others:
        return others[0]
    what = min((error.what for error in not_finite), key=list(NonFiniteError.CAUSES).index)
    return NonFiniteError(what, sorted({row for error in not_finite if error.what == what for row in error.rows}))


def _added_up(accelerator: Any, device: torch.device, sums: Sums) -> Sums:
    """The sums of all processes, by two messages whose size depends on nothing."""
    if accelerator.num_processes == 1:
        return sums
    added = torch.tensor([getattr(sums, name) for name in ADDED], dtype=torch.float64).to(device)
    dist.all_reduce(added)
    smallest = torch.tensor([sums.w_min, sums.c_min, -sums.c_max], dtype=torch.float64).to(device)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    w_min, c_min, minus_c_max = smallest.tolist()
    return Sums(**dict(zip(ADDED, added.tolist(), strict=True)), w_min=w_min, c_min=c_min, c_max=-minus_c_max)


def log(trainer: Any, sums: Sums, started: float) -> None:
    """Add the statistics, and the seconds since ``started`` (of time.perf_counter), to the trainer's metrics."""
    for name, value in {**vars(sums.statistics()), "seconds": time.perf_counter() - started}.items():
        trainer._metrics["train"][f"cw_grpo/{name}"].append(value)


def record(
    trainer: Any,
    sums: Sums,
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"],
    mask: Shaped[Tensor, "rows time"],
    rewards: Float[Tensor, " all"],
    prompts: Int[Tensor, "rows prompt"],
    responses: Int[Tensor, "rows time"],
    tokenizer: Any,
) -> None:
    """Write the token record of a generation batch, if one of the steps that train on it is due.

    Every process calls it. The first one writes: its own rows, if the batch has more tokens than a record holds and
    each process holds whole groups; else those of all processes. So what travels has a limit.

    Args:
        trainer: as in :func:`reweight_over_processes`; and it has ``_cw_files``.
        sums: those of the whole batch.
        log_probs, advantages, mask: of this process's rows, before the weights.
        rewards: one for each row of all processes.
        prompts: token ids plus 1, and 0 elsewhere.
        responses: token ids where ``mask`` is not 0.
    """
    if not _is_due(trainer):
        return
    accelerator = trainer.accelerator
    of_all = sums.tokens <= LIMIT or not _holds_whole_groups(trainer, len(log_probs))
    if of_all:
        log_probs, mask = _gathered(accelerator, log_probs), _gathered(accelerator, mask)
        prompts, responses = _gathered(accelerator, prompts), _gathered(accelerator, responses)
        advantages = accelerator.gather(advantages)
    if accelerator.is_main_process:
        group, rewards = _group_numbers(trainer, len(log_probs)), rewards[: len(log_probs)]
        sequences = partial(map, partial(_sequence, prompts.cpu(), responses.cpu()))
        batch = Batch(log_probs, advantages, mask, group, rewards, sequences)
        if not of_all:
            batch = replace(batch, groups=int(sums.groups), tokens=int(sums.tokens))
        trainer._cw_files.write(trainer.state.global_step + 1, batch, tokenizer)


def _sequence(prompts: Tensor, responses: Tensor, row: int) -> tuple[Tensor, Tensor]:
    return prompts[row][prompts[row] > 0] - 1, responses[row]


def _is_due(trainer: Any) -> bool:
    """Whether to record the generation batch at hand: one of the steps that train on it is due."""
    args, step = trainer.args, trainer.state.global_step + 1
    steps = math.ceil(args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps)
    return any(map(trainer._cw_options.is_due, range(step, step + steps)))
