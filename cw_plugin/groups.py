"""The valid tokens of a batch's prompt groups: found, taken out of (rows, time), and put back.

NumPy takes values at a mask, and puts them there, several times faster than PyTorch. So these work on the CPU.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cw_plugin.errors import NonFiniteError


def check_shapes(
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    group: Tensor | None = None,
    entropies: Tensor | None = None,
) -> None:
    """Raise ValueError unless the tensors belong to one batch; shapes as in :func:`cw_plugin.weights.reweight`."""
    given = {"log_probs": log_probs, "advantages": advantages, "response_mask": response_mask}
    given |= {name: values for name, values in (("group", group), ("entropies", entropies)) if values is not None}
    shape = log_probs.shape
    fits = (
        len(shape) == 2
        and advantages.shape in (shape, shape[:1])
        and response_mask.shape == shape
        and (group is None or group.shape == shape[:1])
        and (entropies is None or entropies.shape == shape)
    )
    if not fits:
        seen = ", ".join(f"{name} {tuple(values.shape)}" for name, values in given.items())
        raise ValueError(
            f"{seen} do not fit; give (rows, time) for each, but (rows,) for group, and either for advantages"
        )


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


def non_finite_error(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    valid: Bool[Tensor, "rows time"],
    rows: Int[Tensor, " _"],
    entropies: Float[Tensor, "rows time"] | None = None,
) -> NonFiniteError:
    """The error that names the rows at fault, among those of groups whose weighted advantages are not finite."""
    by_name = {
        "log_probs": log_probs,
        "entropies": entropies if entropies is not None else torch.zeros_like(log_probs),
        "advantages": advantages if advantages.ndim == 2 else advantages[:, None],
    }
    for name, values in by_name.items():
        wrong = (valid[rows] & ~values[rows].isfinite()).any(1)
        if wrong.any():
            return NonFiniteError(name, rows[wrong].tolist())
    return NonFiniteError("weighted advantages", rows[valid[rows].any(1)].tolist())
