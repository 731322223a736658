"""The valid tokens of a batch's prompt groups: found, taken out of (rows, time), and put back.

NumPy takes values at a mask, and puts them there, several times faster than PyTorch. So these work on the CPU.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cw_plugin.errors import OptionsError


@dataclass(frozen=True)
class GroupTokens:
    """The N > 0 valid tokens of the responses to a prompt, row after row; with scope "batch", those of a whole batch.

    All values are of the policy before the update. The properties are computed when they are first asked for. The rows
    are in an order of their own (:func:`in_own_order`), whichever order they have in the batch.

    Attributes:
        log_probs: log pi of each token, in nats, float32 or float64.
        advantages: A of each token, that of its response, in the same dtype.
        known_entropies: of the policy at each token's position, in nats and that dtype; None if the weighting declares
            that it needs none.
        mask: where the tokens are in the rows of the group.
        step: of training, the seed of weightings that draw.
        known_batch_entropy: the mean entropy of all valid tokens of the batch, in nats; None if the weighting does not
            declare that it needs it.
    """

    log_probs: Float[Tensor, " N"]
    advantages: Float[Tensor, " N"]
    known_entropies: Float[Tensor, " N"] | None
    mask: Bool[np.ndarray, "rows time"] | Bool[Tensor, "rows time"]
    step: int = 0
    known_batch_entropy: float | None = None

    @property
    def entropies(self) -> Float[Tensor, " N"]:
        """H of the policy at each token's position, in nats; an OptionsError if the weighting does not declare it."""
        if self.known_entropies is None:
            raise OptionsError(
                "the weighting reads entropies without saying so", fix="declare it with needs_entropies=True"
            )
        return self.known_entropies

    @property
    def batch_entropy(self) -> float:
        """The mean entropy of the batch, in nats; an OptionsError if the weighting does not declare it."""
        if self.known_batch_entropy is None:
            raise OptionsError(
                "the weighting reads batch_entropy without saying so", fix="declare it with needs_batch_entropy=True"
            )
        return self.known_batch_entropy

    @cached_property
    def row(self) -> Int[Tensor, " N"]:
        """The row of each token within the group, in the group's own order: tokens of a response share it."""
        return torch.as_tensor(self.mask).nonzero()[:, 0]

    @cached_property
    def position(self) -> Int[Tensor, " N"]:
        """The place of each token in its response: 0 for the response's first valid token, whatever the padding."""
        mask = torch.as_tensor(self.mask)
        row, column = mask.nonzero(as_tuple=True)
        return column - mask.int().argmax(1)[row]

    def response_means(self, values: Float[Tensor, " N"]) -> tuple[Float[Tensor, " R"], Int[Tensor, " N"]]:
        """The mean of ``values`` over each of the R responses that have tokens, and the response of each token."""
        _, response, lengths = torch.unique_consecutive(self.row, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(lengths), dtype=values.dtype).index_add_(0, response, values)
        return sums / lengths, response

    @cached_property
    def generator(self) -> torch.Generator:
        """Random numbers for weightings that draw. They depend on the step and the lengths of the responses alone.

        So they do not change with the order of the batch, or the number of processes, and rounding does not change
        them. To draw tokens, draw a number for each of the N, so that those of one do not depend on another.
        """
        lengths = torch.as_tensor(self.mask).sum(1).tolist()  # in the group's own order: from its worst response on
        seed = np.random.SeedSequence([self.step % 2**32, *lengths])
        return torch.Generator().manual_seed(int(seed.generate_state(1)[0]))


def as_booleans(mask: Shaped[Tensor, "rows time"]) -> Bool[Tensor, "rows time"]:
    """True where a mask is not 0. PyTorch compares booleans with 0 many times more slowly than numbers."""
    return mask if mask.dtype == torch.bool else mask != 0


def rows_of_groups(group: Int[Tensor, " rows"]) -> list[Int[np.ndarray, " _"]]:
    """The rows of each group, in ascending order."""
    group_after_group = group.argsort(stable=True).numpy()
    _, starts = np.unique(group.numpy()[group_after_group], return_index=True)
    return np.split(group_after_group, starts[1:])


def in_own_order(
    rows: Int[np.ndarray, " _"],
    lengths: Int[np.ndarray, " rows"],
    valid: Bool[np.ndarray, "rows time"],
    advantages: Float[np.ndarray, " rows"] | Float[np.ndarray, "rows time"],
    log_probs: Float[np.ndarray, "rows time"],
    entropies: Float[np.ndarray, "rows time"] | None,
) -> Int[np.ndarray, " _"]:
    """The rows of a group, in an order that depends on nothing but what they hold, and so not on the batch's order.

    It goes by the advantage, then by the number of valid tokens, then by log-probs and entropies. Rows are compared by
    their sums first, which rounding hardly changes, and if these are equal, bit by bit.
    """
    first = {row: (_total(advantages, valid, row), int(lengths[row])) for row in rows.tolist()}
    if len(set(first.values())) == len(first):  # which nearly every group ends with
        return np.array(sorted(first, key=first.__getitem__))

    of_tokens = [log_probs] if entropies is None else [log_probs, entropies]

    def everything(row: int) -> tuple[object, ...]:
        sums = [_total(values, valid, row) for values in of_tokens]
        bits = [_tokens(values, valid, row).tobytes() for values in (advantages, *of_tokens)]
        return *first[row], *sums, *bits

    return np.array(sorted(first, key=everything))


def _tokens(
    array: Float[np.ndarray, "rows ..."], valid: Bool[np.ndarray, "rows time"], row: int
) -> Float[np.ndarray, " N"]:
    return array[row][valid[row]] if array.ndim == 2 else array[row : row + 1]


def _total(array: Float[np.ndarray, "rows ..."], valid: Bool[np.ndarray, "rows time"], row: int) -> float:
    return float(_tokens(array, valid, row).sum(dtype=np.float64) if array.ndim == 2 else array[row])


def highest(values: Float[Tensor, " N"], count: int) -> Int[Tensor, " count"]:
    """The places of exactly ``count`` values, the highest; of equal ones, those that come first in the group."""
    return values.argsort(descending=True, stable=True)[:count]


def take(
    values: Float[np.ndarray, " rows"] | Float[np.ndarray, "rows time"],
    valid: Bool[np.ndarray, "rows time"],
    lengths: Int[np.ndarray, " rows"],
) -> Float[Tensor, " N"]:
    """The values of the valid tokens, row after row; ``values`` has one for each row, or one for each token.

    ``lengths`` says how many valid tokens each row has.
    """
    return torch.from_numpy(values.repeat(lengths) if values.ndim == 1 else values[valid])


def put(tokens: Float[Tensor, " N"], valid: Bool[np.ndarray, "rows time"]) -> Float[np.ndarray, "rows time"]:
    """The rows of which :func:`take` would take these tokens, 0 where no token is valid."""
    rows = np.zeros(valid.shape, tokens.numpy().dtype)
    rows[valid] = tokens.numpy()
    return rows
