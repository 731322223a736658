"""The method in a trainer whose batch lies in parts: micro-batches, and rows that several processes hold.

Such trainers are built on accelerate: TRL's and ms-swift's.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cw_plugin.errors import CWGRPOError, NonFiniteError, first_line
from cw_plugin.options import Options
from cw_plugin.records.write import LIMIT, Batch, TokenFiles
from cw_plugin.weights import ADDED, Sums, reweight_and_sum


@runtime_checkable
class Accelerator(Protocol):
    """What is used of accelerate's Accelerator."""

    num_processes: int
    process_index: int
    is_main_process: bool

    def gather(self, tensor: Tensor) -> Tensor:
        """The rows of all processes; each has as many, and they are as wide."""

    def pad_across_processes(self, tensor: Tensor, dim: int) -> Tensor:
        """The rows of this process, padded with zeros to the widest of all processes."""


class Arguments(Protocol):
    """What is used of a trainer's arguments. A step is an update of the model."""

    output_dir: str
    steps_per_generation: int  # micro-batches in a generation batch
    num_iterations: int  # how often a generation batch is trained on
    gradient_accumulation_steps: int  # micro-batches in a step


class State(Protocol):
    """What is used of transformers' TrainerState."""

    global_step: int  # steps that are done


@runtime_checkable
class GroupTrainer(Protocol):
    """What is used of TRL's and ms-swift's GRPOTrainer, which are constructed."""

    accelerator: Accelerator
    args: Arguments
    state: State
    num_generations: int  # responses to a prompt
    _metrics: Mapping[str, Mapping[str, list[float]]]  # "train" -> name -> values until the next log


@dataclass(frozen=True)
class Sequences:
    """What a token record shows beside the weights.

    Attributes:
        prompts: token ids where ``prompt_mask`` is not 0.
        prompt_mask: of the prompts.
        responses: token ids where the batch's mask is not 0.
        rewards: one for each row of all processes.
        tokenizer: one of transformers, which spells the tokens.
    """

    prompts: Int[Tensor, "rows prompt"]
    prompt_mask: Shaped[Tensor, "rows prompt"]
    responses: Int[Tensor, "rows time"]
    rewards: Float[Tensor, " all"]
    tokenizer: Any


@dataclass(frozen=True)
class ProcessBatch:
    """The rows of a generation batch that one process holds.

    Every process has the same number of rows. Where those of all processes are joined, responses to a prompt are
    consecutive.

    Attributes:
        log_probs: as in :func:`cw_plugin.weights.reweight`.
        advantages: one for each response, before the weights.
        response_mask: as in reweight.
    """

    log_probs: Float[Tensor, "rows time"]
    advantages: Float[Tensor, " rows"]
    response_mask: Shaped[Tensor, "rows time"]


class AccelerateRun:
    """One run, in one of its processes: its options and its token records.

    Args:
        trainer: the trainer of this process. Its metrics get those of the weights.
        options: the same in every process.
    """

    def __init__(self, trainer: GroupTrainer, options: Options) -> None:
        self.options = options
        self._trainer = trainer
        self._files = TokenFiles(Path(trainer.args.output_dir), options)

    def reweight(
        self, batch: ProcessBatch, sequences: Sequences | None, started: float
    ) -> Float[Tensor, "rows time"] | None:
        """Reweight a batch, log its statistics, and record its tokens if one of the steps that train on it is due.

        Args:
            batch: the rows of this process; every process calls this.
            sequences: None if the host cannot tell rows apart; then nothing is recorded.
            started: when the work began, of time.perf_counter. The metric ``seconds`` counts from there.

        Returns:
            ``w~ A`` of this process's rows, or None if the kernel is "none": then the host's own advantages stay, bit
            for bit.

        Raises:
            NonFiniteError, OptionsError: as in reweight, the same in every process. Rows are those of the whole batch.
        """
        weighted, sums = self.reweight_over_processes(batch)
        for name, value in sums.statistics().as_metrics(time.perf_counter() - started).items():
            self._trainer._metrics["train"][name].append(value)
        if sequences is not None and self._is_due():
            self.record(batch, sequences, sums)
        return None if self.options.kernel == "none" else weighted

    def reweight_over_processes(self, batch: ProcessBatch) -> tuple[Float[Tensor, "rows time"], Sums]:
        """Reweight a batch by whole prompt groups, of which several processes may each hold a part.

        Where each process holds whole groups, it reweights its own, and only sums travel. Otherwise, and with scope
        "batch", every process gathers all rows, and reweights all of them (tests/benchmarks/scale.md says what that
        costs). If one process fails, all of them raise its error.

        Returns:
            ``w~ A`` of this process's rows, and the sums of the whole batch.
        """
        accelerator, device = self._trainer.accelerator, batch.log_probs.device
        rows, width = batch.log_probs.shape
        own_first_row = accelerator.process_index * rows  # its number in the whole batch
        has_own_groups = self._holds_whole_groups(rows)
        failure: Exception | None = None
        if has_own_groups:
            part, first_row = batch, own_first_row
        else:
            part, first_row = self._rows_of_all(batch), 0
        try:
            weighted, sums = self._reweight(part, first_row)
        except Exception as error:  # of any kind: the other processes must not wait for this one
            failure = error
        _raise_in_all(accelerator, device, failure)
        if has_own_groups:
            return weighted, _added_up(accelerator, device, sums)
        return weighted[own_first_row : own_first_row + rows, :width].to(device), sums

    def _rows_of_all(self, batch: ProcessBatch) -> ProcessBatch:
        """The whole batch, on the CPU."""
        accelerator = self._trainer.accelerator
        return ProcessBatch(
            log_probs=_gathered(accelerator, batch.log_probs).cpu(),
            advantages=accelerator.gather(batch.advantages).cpu(),
            response_mask=_gathered(accelerator, batch.response_mask).cpu(),
        )

    def _reweight(self, batch: ProcessBatch, first_row: int) -> tuple[Float[Tensor, "rows time"], Sums]:
        """reweight_and_sum for rows of which the first has this number in the whole batch."""
        group = None if self.options.scope == "batch" else self._group_numbers(len(batch.log_probs))
        try:
            return reweight_and_sum(batch.log_probs, batch.advantages, batch.response_mask, group, self.options.kernel)
        except NonFiniteError as error:
            raise NonFiniteError(error.what, [first_row + row for row in error.rows]) from None

    def record(self, batch: ProcessBatch, sequences: Sequences, sums: Sums) -> None:
        """Write the token record of a generation batch.

        Every process calls it. The first one writes: its own rows, if the batch has more tokens than a record holds and
        each process holds whole groups; else those of all processes. So what travels has a limit.

        Args:
            batch: the rows of this process.
            sequences: their tokens.
            sums: those of the whole batch.
        """
        accelerator = self._trainer.accelerator
        log_probs, advantages, mask = batch.log_probs, batch.advantages, batch.response_mask
        prompts, prompt_mask, responses = sequences.prompts, sequences.prompt_mask, sequences.responses
        own_rows_only = sums.tokens > LIMIT and self._holds_whole_groups(len(log_probs))
        if not own_rows_only:
            log_probs, mask = _gathered(accelerator, log_probs), _gathered(accelerator, mask)
            prompts, prompt_mask = _gathered(accelerator, prompts), _gathered(accelerator, prompt_mask)
            responses = _gathered(accelerator, responses)
            advantages = accelerator.gather(advantages)
        if not accelerator.is_main_process:
            return
        recorded = Batch(
            log_probs=log_probs,
            advantages=advantages,
            response_mask=mask,
            group=self._group_numbers(len(log_probs)),
            rewards=sequences.rewards[: len(log_probs)],
            read_sequences=partial(_token_ids, prompts.cpu(), prompt_mask.cpu().bool(), responses.cpu()),
            groups=int(sums.groups) if own_rows_only else None,
            tokens=int(sums.tokens) if own_rows_only else None,
        )
        self._files.write(self._trainer.state.global_step + 1, recorded, sequences.tokenizer)

    def _holds_whole_groups(self, rows: int) -> bool:
        """Whether the tokens that share statistics are all in one process. Every process knows it, without asking."""
        return self.options.scope == "group" and rows % self._trainer.num_generations == 0

    def _group_numbers(self, rows: int) -> Int[Tensor, " rows"]:
        return torch.arange(rows) // self._trainer.num_generations

    def _is_due(self) -> bool:
        """Whether to record the generation batch at hand: one of the steps that train on it is due."""
        args, step = self._trainer.args, self._trainer.state.global_step + 1
        steps = math.ceil(args.steps_per_generation * args.num_iterations / args.gradient_accumulation_steps)
        return any(self.options.is_due(later) for later in range(step, step + steps))


def _token_ids(
    prompts: Int[Tensor, "all prompt"],
    prompt_mask: Bool[Tensor, "all prompt"],
    responses: Int[Tensor, "all time"],
    rows: Sequence[int],
) -> list[tuple[Tensor, Tensor]]:
    """Prompt and response of some rows."""
    return [(prompts[row][prompt_mask[row]], responses[row]) for row in rows]


def _gathered(accelerator: Accelerator, rows: Shaped[Tensor, "rows time"]) -> Shaped[Tensor, "all width"]:
    """The rows of all processes, padded with zeros to the widest."""
    if rows.dtype == torch.bool:  # which accelerate would turn into int64 in those processes alone that pad
        rows = rows.byte()
    return accelerator.gather(accelerator.pad_across_processes(rows, dim=1))


def _raise_in_all(accelerator: Accelerator, device: torch.device, failure: Exception | None) -> None:
    """Raise in every process the error that one or several of them have. None waits for one that has stopped."""
    if accelerator.num_processes == 1:
        if failure is not None:
            raise failure
        return
    failed = torch.tensor(0 if failure is None else 1).to(device)
    dist.all_reduce(failed)
    if not failed.item():
        return
    own_error = failure
    if failure is not None and not isinstance(failure, CWGRPOError):  # another's error may not survive pickling
        problem = f"{type(failure).__name__}: {first_line(failure)}"
        own_error = CWGRPOError(f"process {accelerator.process_index} failed with {problem}")
    errors: list[CWGRPOError | None] = [None] * accelerator.num_processes
    dist.all_gather_object(errors, own_error)
    raise _joined_errors([error for error in errors if error is not None]) from failure


def _joined_errors(errors: Sequence[CWGRPOError]) -> CWGRPOError:
    """The error that a process with the rows of all would raise."""
    not_finite: list[NonFiniteError] = []
    for error in errors:
        if not isinstance(error, NonFiniteError):
            return error
        not_finite.append(error)
    what = min((error.what for error in not_finite), key=list(NonFiniteError.CAUSES).index)
    rows = {row for error in not_finite if error.what == what for row in error.rows}
    return NonFiniteError(what, sorted(rows))


def _added_up(accelerator: Accelerator, device: torch.device, sums: Sums) -> Sums:
    """The sums of all processes, by two messages whose size depends on nothing."""
    if accelerator.num_processes == 1:
        return sums
    added = torch.tensor([getattr(sums, name) for name in ADDED], dtype=torch.float64).to(device)
    dist.all_reduce(added)
    smallest = torch.tensor([sums.w_min, sums.c_min, -sums.c_max], dtype=torch.float64).to(device)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    w_min, c_min, minus_c_max = smallest.tolist()
    return Sums(**dict(zip(ADDED, added.tolist(), strict=True)), w_min=w_min, c_min=c_min, c_max=-minus_c_max)
