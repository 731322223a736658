"""A run of which several processes each hold a part of the batch, as with trainers that are built on accelerate."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from cw_plugin.batch import Batch
from cw_plugin.errors import CWGRPOError, NonFiniteError, first_line
from cw_plugin.options import Options
from cw_plugin.records.write import LIMIT
from cw_plugin.reweight import Applied
from cw_plugin.run import Run
from cw_plugin.statistics import Sums

Value = TypeVar("Value")


@runtime_checkable
class Accelerator(Protocol):
    """What is used of accelerate's class of this name."""

    process_index: int
    num_processes: int
    is_main_process: bool

    def gather(self, tensor: Tensor) -> Tensor:
        """The rows of all processes, one after the other."""

    def pad_across_processes(self, tensor: Tensor, dim: int) -> Tensor:
        """The tensor, padded with zeros to the size that it has at most in a process."""


class ShardedRun(Run):
    """A run in one of its processes, each of which calls :meth:`Run.reweight` with its rows of the batch.

    Every process has the same number of rows. Where those of all processes are joined, the responses to a prompt are
    consecutive. If each process holds whole groups, it reweights its own, and only sums travel, but for the rows of a
    token record. In three cases, every process gathers and reweights all rows: if a group lies across processes, with
    scope "batch", or if the weighting needs the batch's mean entropy. If one process fails, all of them raise its
    error; rows are named by their place in the whole batch.

    Args:
        accelerator: accelerate's Accelerator, of this process.
        responses: how many a prompt has.
        options, folder: as in :class:`Run`.
    """

    def __init__(self, accelerator: Accelerator, responses: int, options: Options, folder: Path) -> None:
        super().__init__(options, folder)
        self._accelerator = accelerator
        self._responses = responses

    def _apply_to_batch(self, batch: Batch, step: int, keeps_weights: bool) -> tuple[Applied, float]:
        if self._accelerator.num_processes == 1:
            return super()._apply_to_batch(batch, step, keeps_weights)
        rows, width = batch.log_probs.shape
        own_first_row = self._accelerator.process_index * rows  # its number in the whole batch
        has_own_groups = self._holds_whole_groups(rows)
        part = batch.on_cpu() if has_own_groups else self._rows_of_all(batch)
        started = time.perf_counter()
        outcome: Sums | CWGRPOError
        failure: Exception | None = None
        try:
            applied = self._apply_to_rows(part, step, keeps_weights)
            outcome = applied.sums
        except Exception as error:  # of any kind: the other processes must not wait for this one
            failure, outcome = error, self._as_told(error, own_first_row if has_own_groups else 0)
        seconds = time.perf_counter() - started
        outcomes = self._of_all(outcome)
        errors = [of_process for of_process in outcomes if isinstance(of_process, CWGRPOError)]
        if errors:
            raise _joined_errors(errors) from failure
        if has_own_groups:
            sums = [of_process for of_process in outcomes if isinstance(of_process, Sums)]
            return replace(applied, sums=sum(sums, Sums())), seconds
        own = slice(own_first_row, own_first_row + rows), slice(width)
        weights = None if applied.weights is None else applied.weights[own]
        return replace(applied, advantages=applied.advantages[own], weights=weights), seconds

    def _as_told(self, error: Exception, first_row: int) -> CWGRPOError:
        """The error of this process, as all are told of it; ``first_row`` is that of the rows which it names."""
        if isinstance(error, NonFiniteError):
            return NonFiniteError(error.what, [first_row + row for row in error.rows])
        if isinstance(error, CWGRPOError):
            return error
        problem = f"{type(error).__name__}: {first_line(error)}"  # another's error may not survive pickling
        return CWGRPOError(f"process {self._accelerator.process_index} failed with {problem}")

    def _of_all(self, value: Value) -> list[Value]:
        """The value of each process, which is pickled."""
        values = [value] * self._accelerator.num_processes
        if len(values) > 1:
            dist.all_gather_object(values, value)
        return values

    def _holds_whole_groups(self, rows: int) -> bool:
        """Whether the tokens that share statistics are all in one process. Every process knows it, without asking."""
        is_by_group = self.options.scope == "group" and not self.weighting.needs_batch_entropy
        return is_by_group and rows % self._responses == 0

    def _rows_of_all(self, batch: Batch) -> Batch:
        """The whole batch, on the CPU, padded with zeros to the widest. It has no sequences."""
        device = batch.log_probs.device
        tensors = {name: values.to(device) for name, values in vars(batch).items() if isinstance(values, Tensor)}
        of_all: dict[str, Any] = {name: self._gathered(values) for name, values in tensors.items()}
        return replace(batch, read_sequences=None, **of_all).on_cpu()

    def _gathered(self, values: Tensor) -> Tensor:
        if values.dtype == torch.bool:  # which accelerate would turn into int64 in those processes alone that pad
            values = values.byte()
        if values.ndim == 2:
            values = self._accelerator.pad_across_processes(values, dim=1)
        return self._accelerator.gather(values)

    def _record(self, step: int, batch: Batch, sums: Sums) -> None:
        """Write the token record of the whole batch, in the main process.

        If the batch has more tokens than a record holds, and each process holds whole groups, the record draws from
        the main process's own rows. So what travels has a limit.
        """
        if sums.tokens > LIMIT and self._holds_whole_groups(len(batch.log_probs)):
            if self._accelerator.is_main_process:
                super()._record(step, batch, sums)
            return
        whole = replace(self._rows_of_all(batch), read_sequences=self._sequences_of_all(batch))
        if self._accelerator.is_main_process:
            super()._record(step, whole, sums)

    def _sequences_of_all(self, batch: Batch) -> Callable[[Sequence[int]], list[tuple[Tensor, Tensor]]]:
        """What reads the sequences of any row of the whole batch."""
        assert batch.read_sequences is not None
        own = [
            (prompt.tolist(), response.tolist())
            for prompt, response in batch.read_sequences(range(len(batch.log_probs)))
        ]
        of_all = [sequence for part in self._of_all(own) for sequence in part]

        def read(rows: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
            return [(torch.tensor(of_all[row][0]), torch.tensor(of_all[row][1])) for row in rows]

        return read

    def _write_method_once(self) -> None:
        if self._accelerator.is_main_process:
            super()._write_method_once()


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
