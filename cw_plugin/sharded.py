"""A run of which several processes each hold a part of the batch, as with trainers that are built on accelerate."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from cw_plugin.batch import Batch
from cw_plugin.errors import CWGRPOError, NonFiniteError, first_line
from cw_plugin.options import Options
from cw_plugin.records.write import LIMIT
from cw_plugin.reweight import Applied
from cw_plugin.run import Run
from cw_plugin.statistics import ADDED, Sums

T = TypeVar("T")


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
        accelerator: accelerate's, of this process.
        responses: how many a prompt has.
        options, folder: as in :class:`Run`.
    """

    def __init__(self, accelerator: Accelerator, responses: int, options: Options, folder: Path) -> None:
        super().__init__(options, folder)
        self._accelerator = accelerator
        self._responses = responses

    def _apply_to_batch(self, batch: Batch, step: int, keeps_weights: bool) -> Applied:
        rows, width = batch.log_probs.shape
        own_first_row = self._accelerator.process_index * rows  # its number in the whole batch
        has_own_groups = self._holds_whole_groups(rows)
        part = batch.on_cpu() if has_own_groups else self._rows_of_all(batch)
        first_row = own_first_row if has_own_groups else 0
        failure: Exception | None = None
        try:
            applied = self._apply_to_rows(part, step, keeps_weights)
        except NonFiniteError as error:
            failure = NonFiniteError(error.what, [first_row + row for row in error.rows])
        except Exception as error:  # of any kind: the other processes must not wait for this one
            failure = error
        self._raise_in_all(batch.log_probs.device, failure)
        if has_own_groups:
            return replace(applied, sums=self._added_up(batch.log_probs.device, applied.sums))
        own = slice(own_first_row, own_first_row + rows), slice(width)
        weights = None if applied.weights is None else applied.weights[own]
        return replace(applied, advantages=applied.advantages[own], weights=weights)

    def _raise_in_all(self, device: torch.device, failure: Exception | None) -> None:
        """Raise in every process the error that one or several of them have. None waits for one that has stopped."""
        if self._accelerator.num_processes == 1:
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
            own_error = CWGRPOError(f"process {self._accelerator.process_index} failed with {problem}")
        errors = [error for error in self._of_all(own_error) if isinstance(error, CWGRPOError)]
        raise _joined_errors(errors) from failure

    def _added_up(self, device: torch.device, sums: Sums) -> Sums:
        """The sums of all processes, by two messages whose size depends on nothing."""
        if self._accelerator.num_processes == 1:
            return sums
        added = torch.tensor([getattr(sums, name) for name in ADDED], dtype=torch.float64).to(device)
        dist.all_reduce(added)
        smallest = torch.tensor([sums.w_min, sums.c_min, -sums.c_max], dtype=torch.float64).to(device)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        w_min, c_min, minus_c_max = smallest.tolist()
        return Sums(**dict(zip(ADDED, added.tolist(), strict=True)), w_min=w_min, c_min=c_min, c_max=-minus_c_max)

    def _of_all(self, own: T) -> list[T]:
        """What each process has, in their order."""
        of_all = [own] * self._accelerator.num_processes
        if len(of_all) > 1:
            dist.all_gather_object(of_all, own)
        return of_all

    @property
    def _is_main_process(self) -> bool:
        return self._accelerator.is_main_process

    def _holds_whole_groups(self, rows: int) -> bool:
        """Whether the tokens that share statistics are all in one process. Every process knows it, without asking."""
        is_by_group = self.options.scope == "group" and not self.weighting.needs_batch_entropy
        return is_by_group and rows % self._responses == 0

    def _rows_of_all(self, batch: Batch) -> Batch:
        """The whole batch, on the CPU. It has no sequences."""
        device = batch.log_probs.device
        gathered = batch.with_tensors(lambda tensor: self._gathered(tensor.to(device)))
        return replace(gathered, read_sequences=None).on_cpu()

    def _gathered(self, rows: Shaped[Tensor, "rows ..."]) -> Shaped[Tensor, "all ..."]:
        """The rows of all processes, padded with zeros to the widest."""
        if rows.dtype == torch.bool:  # which accelerate would turn into int64 in those processes alone that pad
            rows = rows.byte()
        return self._accelerator.gather(self._accelerator.pad_across_processes(rows, dim=1))

    def _record(self, step: int, batch: Batch, sums: Sums) -> None:
        """Write the token record of the whole batch, in the main process.

        If the batch has more tokens than a record holds, and each process holds whole groups, the record draws from
        the main process's own rows. So what travels has a limit.
        """
        draws_from_own = sums.tokens > LIMIT and self._holds_whole_groups(len(batch.log_probs))
        if not draws_from_own:
            batch = replace(self._rows_of_all(batch), read_sequences=self._sequences_of_all(batch))
        super()._record(step, batch, sums)

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
