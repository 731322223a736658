"""The valid tokens of a batch's prompt groups: found, taken out of (rows, time), and put back.

NumPy takes values at a mask, and puts them there, several times faster than PyTorch. So these work on the CPU.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def rows_of_groups(group: Int[Tensor, " rows"]) -> list[Int[np.ndarray, " _"]]:
    """The rows of each group, in ascending order."""
    _, starts = np.unique(np.sort(group.numpy()), return_index=True)
    return np.split(group.argsort(stable=True).numpy(), starts[1:])


def take(
    values: Float[np.ndarray, " rows"] | Float[np.ndarray, "rows time"], valid: Bool[np.ndarray, "rows time"]
) -> Float[Tensor, " N"]:
    """The values of the valid tokens, row after row; ``values`` has one for each row, or one for each token."""
    return torch.from_numpy(values.repeat(valid.sum(1)) if values.ndim == 1 else values[valid])


def put(tokens: Float[Tensor, " N"], valid: Bool[np.ndarray, "rows time"]) -> Float[np.ndarray, "rows time"]:
    """The rows of which :func:`take` would take these tokens, 0 where no token is valid."""
    rows = np.zeros(valid.shape, tokens.numpy().dtype)
    rows[valid] = tokens.numpy()
    return rows
