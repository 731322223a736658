"""The valid tokens of a batch's prompt groups: found, taken out of (rows, time), and put back.

NumPy takes values at a mask, and puts them there, several times faster than PyTorch. So these work on the CPU.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cw_plugin.errors import OptionsError


@dataclass(frozen=True)
class GroupTokens:
    """The N > 0 valid tokens of the responses to a prompt, row after row; with scope "batch", those of a whole batch.

    All values are of the policy before the update. The properties are computed when they are first asked for.

    Attributes:
        log_probs: log pi of each token, in nats, float32 or float64.
        advantages: A of each token, that of its response, in the same dtype.
        known_entropies: of the policy at each token's position, in nats and that dtype; None if the weighting declares
            that it needs none.
        mask: where the tokens are in the rows of the group.
        seed: the step, and the number of the group in the batch.
    """

    log_probs: Float[Tensor, " N"]
    advantages: Float[Tensor, " N"]
    known_entropies: Float[Tensor, " N"] | None
    mask: Bool[np.ndarray, "rows time"] | Bool[Tensor, "rows time"]
    seed: tuple[int, int] = (0, 0)

    @property
    def entropies(self) -> Float[Tensor, " N"]:
        """H of the policy at each token's position, in nats; an OptionsError if the weighting does not declare it."""
        if self.known_entropies is None:
            raise OptionsError(
                "the weighting reads entropies without saying so", fix="declare it with needs_entropies=True"
            )
        return self.known_entropies

    @cached_property
    def row(self) -> Int[Tensor, " N"]:
        """The row of each token within the group: tokens of a response share it."""
        return torch.as_tensor(self.mask).nonzero()[:, 0]

    @cached_property
    def position(self) -> Int[Tensor, " N"]:
        """The column of each token."""
        return torch.as_tensor(self.mask).nonzero()[:, 1]

    @cached_property
    def generator(self) -> torch.Generator:
        """Random numbers that depend on the step and the group alone, for weightings that draw."""
        seed = np.random.SeedSequence([number % 2**32 for number in self.seed])
        return torch.Generator().manual_seed(int(seed.generate_state(1)[0]))


def rows_of_groups(group: Int[Tensor, " rows"]) -> list[Int[np.ndarray, " _"]]:
    """The rows of each group, in ascending order."""
    in_order = group.argsort(stable=True).numpy()
    _, starts = np.unique(group.numpy()[in_order], return_index=True)
    return np.split(in_order, starts[1:])


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
