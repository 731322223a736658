"""Groups rows of similar length into blocks, so that padding costs nothing and no operation waits for other threads.

Responses end at different columns, and verl pads them all to one width. A block holds rows that end at about the same
column, and is cut off there.

Blocks are small enough for a CPU's cache. With several threads they are smaller still: torch splits most operations on
32768 elements and more over its threads. If other work runs on the same cores, each such operation waits for the
slowest thread, which took several times as long. torch splits a few operations at any size, among them exp, sqrt and
indexing by a tensor; it does not split small exp2, ``** 0.5`` and index_select. A GPU needs few, large launches
instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_ELEMENTS = {"one thread": 2**17, "several threads": 2**15 - 1, "accelerator": 2**24}  # in a block, at most
_CHUNK = 128  # columns that are counted together to find out where responses end


@dataclass(frozen=True)
class Block:
    """Rows with at least one token. Tensors "in block order" have one value per row, block after block."""

    at: slice  # these rows in block order
    rows: Int[Tensor, " block"]  # their indices in the batch
    n: Float[Tensor, " block"]  # valid tokens of each, float64
    full: int  # every token before this column is valid
    longest: int  # no token is valid from this column on
    invalid: Bool[Tensor, "block ragged"]  # the invalid tokens in between

    def take(self, batch: Float[Tensor, "rows time"], dtype: torch.dtype) -> Float[Tensor, "block longest"]:
        """A copy of these rows."""
        return batch[:, : self.longest].index_select(0, self.rows).to(dtype)

    def put(self, values: Float[Tensor, "block longest"], batch: Float[Tensor, "rows time"]) -> None:
        batch[:, : self.longest].index_copy_(0, self.rows, values)

    def clear(self, values: Float[Tensor, "block longest"]) -> Float[Tensor, "block longest"]:
        """Sets values outside the mask to 0, in place, also NaN."""
        values[:, self.full :].masked_fill_(self.invalid, 0.0)
        return values


def blocks_of_like_length(mask: Tensor) -> list[Block]:
    """Blocks of all rows that have a token, the longest first."""
    time = mask.shape[1]
    elements = block_elements(mask.device)

    # Valid tokens in every chunk of columns. The last chunk is the narrower rest.
    whole = time // _CHUNK
    chunked = mask[:, : whole * _CHUNK].unflatten(1, (whole, _CHUNK)).split(max(1, elements // max(time, 1)))
    sums = torch.cat([chunks.sum(-1) for chunks in chunked])
    counts = torch.cat([sums, mask[:, whole * _CHUNK :].sum(-1, keepdim=True)], 1).cpu().numpy()
    ends = np.minimum(np.arange(1, whole + 2) * _CHUNK, time)
    sizes = np.diff(ends, prepend=0)
    longest = ((counts > 0) * ends).max(1)
    full = (np.cumprod(counts == sizes, axis=1) * sizes).sum(1)

    order = np.lexsort((full, longest))[::-1][: np.count_nonzero(longest)].copy()
    n = torch.from_numpy(counts.sum(1, dtype=np.float64)[order]).to(mask.device)
    numbers = torch.from_numpy(order).to(mask.device)
    blocks, start = [], 0
    while start < len(order):
        width = int(longest[order[start]])
        at = slice(start, start := min(len(order), start + max(1, elements // width)))
        ragged = slice(int(full[order[at]].min()), width)
        invalid = mask[:, ragged].index_select(0, numbers[at]) == 0
        blocks.append(Block(at, numbers[at], n[at], ragged.start, width, invalid))
    return blocks


def block_elements(device: torch.device) -> int:
    if device.type != "cpu":
        return _ELEMENTS["accelerator"]
    return _ELEMENTS["one thread" if torch.get_num_threads() == 1 else "several threads"]


def zeros(rows: int, time: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "rows time"]:
    if device.type != "cpu":
        return torch.zeros(rows, time, dtype=dtype, device=device)
    # NumPy asks the system for huge pages. Getting as much memory in small ones takes longer than computing exp.
    return torch.from_numpy(np.zeros((rows, time), np.float64 if dtype == torch.float64 else np.float32))


def multiply_rows(batch: Float[Tensor, "rows time"], factor: Float[Tensor, " rows"]) -> None:
    """In place."""
    size = max(1, block_elements(batch.device) // max(batch.shape[1], 1))
    for values, by in zip(batch.split(size), factor[:, None].split(size), strict=True):
        values *= by
