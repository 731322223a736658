"""What is refused of a batch: shapes that do not belong together, values that are not finite, and wrong weights."""

import math
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cw_plugin.errors import NonFiniteError, OptionsError, first_line
from cw_plugin.registry import Weighting, place_of
from cw_plugin.weights import Group, gaussian


def check_shapes(
    log_probs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    group: Tensor | None = None,
    entropies: Tensor | None = None,
) -> None:
    """Raise ValueError unless the tensors belong to one batch; shapes as in :func:`cw_plugin.reweight.reweight`."""
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


def needed_entropies(
    weighting: Weighting, entropies: Float[Tensor, "rows time"] | None
) -> Float[Tensor, "rows time"] | None:
    """The entropies if a weighting needs them, else None; an OptionsError if it needs them, and there are none."""
    if not weighting.needs_entropies:
        return None
    if entropies is None:
        problem = f"weights={weighting.name!r} needs the entropy of each position, and got none"
        raise OptionsError(problem, fix="pass entropies, (rows, time)")
    return entropies


def non_finite_error(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    valid: Bool[Tensor, "rows time"],
    rows: Int[Tensor, " _"],
    entropies: Float[Tensor, "rows time"] | None = None,
) -> NonFiniteError:
    """The error that names the rows at fault, among those of groups whose weighted advantages are not finite."""
    by_name = {"log_probs": log_probs}
    if entropies is not None:
        by_name["entropies"] = entropies
    by_name["advantages"] = advantages if advantages.ndim == 2 else advantages[:, None]
    for name, values in by_name.items():
        wrong = (valid[rows] & ~values[rows].isfinite()).any(1)
        if wrong.any():
            return NonFiniteError(name, rows[wrong].tolist())
    return NonFiniteError("weighted advantages", rows[valid[rows].any(1)].tolist())


def has_finite_values(group: Group) -> bool:
    """Whether all log-probs, advantages and entropies of a group are finite, so that a weighting can be asked."""
    # A sum is finite if all of its values are, and is computed far faster than isfinite of each.
    entropies = group.known_entropies
    total = group.c.sum() if entropies is None else group.c.sum() + entropies.sum(dtype=torch.float64)
    return math.isfinite(total)


def checked(weighting: Weighting) -> Weighting:
    """The same weighting, whose weights are checked; the paper's own needs no check."""
    if weighting is gaussian:
        return weighting
    return replace(weighting, function=partial(_checked_weights, weighting), values={})


def _checked_weights(weighting: Weighting, group: Group) -> Float[Tensor, " N"]:
    """The weights of a group's tokens. The weighting gets copies, which it may change.

    Raises:
        OptionsError: the weighting fails, or returns what cannot be weights.
    """
    x, named = group.log_probs, f"weights={weighting.name!r}"
    try:
        w = weighting(deepcopy(group))
    except OptionsError as error:
        raise OptionsError(f"{named}: {error.problem}", error.fix) from error
    except Exception as error:
        raised = f"{type(error).__name__}: {first_line(error)}"
        place = place_of(error, weighting.function)
        raise OptionsError(f"{named} raised {raised}; mend it in {place}, for a group of {len(x)} tokens") from error
    if not isinstance(w, Tensor) or w.shape != x.shape:
        got = f"shape {tuple(w.shape)}" if isinstance(w, Tensor) else f"a {type(w).__name__}"
        raise OptionsError(f"{named} returned {got}; return one weight for each of the group's {len(x)} tokens")
    w = w.detach().to(x)
    if (wrong := ~w.isfinite() | (w < 0)).any():
        at = int(wrong.nonzero()[0])
        token = f"log_prob={x[at]:.3g}, advantage={group.advantages[at]:.3g} and z={group.z[at]:.3g}"
        raise OptionsError(f"{named} returned {w[at]:.3g} at {token}; weights must be finite and not negative")
    if weighting.scaled and not w.any():
        raise OptionsError(f"{named} returned 0 for all {len(x)} tokens of a group; give some a positive weight")
    if weighting.scaled and not (w * (len(x) / w.sum(dtype=torch.float64))).isfinite().all():
        raise OptionsError(
            f"{named} returned weights of {w.max():.3g} at most, too small to be scaled; make them larger"
        )
    return w
