"""The weights that a weighting gives, refused if they cannot be weights."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from cw_plugin.errors import OptionsError, first_line
from cw_plugin.weightings import Weighting

if TYPE_CHECKING:  # weights.py imports this module
    from cw_plugin.weights import Group


def checked_weights(weighting: Weighting, group: "Group") -> Float[Tensor, " N"]:
    """The weights of a group's tokens; NaN if the group's own values are not finite, which reweight refuses.

    The weighting gets copies, which it may change.

    Raises:
        OptionsError: the weighting fails, or returns what cannot be weights.
    """
    x, named = group.log_probs, f"weights={weighting.name!r}"
    entropies = group.known_entropies
    if not (group.c.isfinite().all() and (entropies is None or entropies.isfinite().all())):
        return torch.full_like(x, torch.nan)
    copies = replace(
        group,
        log_probs=x.clone(),
        advantages=group.advantages.clone(),
        known_entropies=None if entropies is None else entropies.clone(),
    )
    try:
        w = weighting(copies)
    except Exception as error:
        raised = f"{type(error).__name__}: {first_line(error)}"
        raise OptionsError(f"{named} raised {raised}; mend it for a group of {len(x)} tokens on the CPU") from error
    if not isinstance(w, Tensor) or w.shape != x.shape:
        got = f"shape {tuple(w.shape)}" if isinstance(w, Tensor) else f"a {type(w).__name__}"
        raise OptionsError(f"{named} returned {got}; return one weight for each of the group's {len(x)} tokens")
    w = w.to(x)
    if (wrong := ~w.isfinite() | (w < 0)).any():
        at = int(wrong.nonzero()[0])
        token = f"log_prob={x[at]:.3g}, advantage={group.advantages[at]:.3g} and z={group.z[at]:.3g}"
        raise OptionsError(f"{named} returned {w[at]:.3g} at {token}; weights must be finite and not negative")
    if weighting.scaled and not w.any():
        raise OptionsError(f"{named} returned 0 for all {len(x)} tokens of a group; give some a positive weight")
    return w
