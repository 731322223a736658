"""The rows of several micro-batches in one tensor."""

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn import functional


def joined(parts: Sequence[Shaped[Tensor, "_ _"]]) -> Shaped[Tensor, "all width"]:
    """The rows of all micro-batches, padded on the right with zeros to the widest."""
    width = max(part.shape[1] for part in parts)
    return torch.cat([functional.pad(part, (0, width - part.shape[1])) for part in parts])
