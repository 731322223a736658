"""Applies the weights to a batch: the tokens of each prompt group are taken out, weighed, and put back."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from cw_plugin.checks import check_shapes, checked, has_finite_values, needed_entropies, non_finite_error
from cw_plugin.groups import as_booleans, in_own_order, put, rows_of_groups, take
from cw_plugin.registry import Weighting, load
from cw_plugin.statistics import CovarianceStatistics, Sums, sums_of_group
from cw_plugin.weights import Group, token_weights


def reweight(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None = None,
    weights: str | Weighting = "gaussian",
    entropies: Float[Tensor, "rows time"] | None = None,
    step: int = 0,
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """w~ A of every token.

    Tensors may live on any device. Each is copied to the CPU once, where the weights are computed, and the result is
    copied back once. :func:`reweight_micro_batch` copies nothing.

    Args:
        log_probs: log pi of each sampled token, in nats. Values where ``response_mask`` is 0 do not matter.
        advantages: one for each response, as in GRPO, or one for each token.
        response_mask: nonzero where a token belongs to the response, of any dtype. Holes are allowed.
        group: a number for each row, the same for all responses to a prompt; ``None`` makes the batch one group.
        weights: a weighting, or its name (weightings/README.md); "none" gives every token weight 1, with the same
            statistics.
        entropies: of the policy at each token's position, in nats, for weightings that need them.
        step: of training, the seed of weightings that draw.

    Returns:
        The reweighted advantages (float32; float64 for float64 log-probs) on the device of ``log_probs``, 0 where the
        mask is 0, and the statistics.

    Raises:
        NonFiniteError: the weighted advantage of a valid token is NaN or infinite, because its log-prob, entropy or
            advantage is, or because they are too large; the message names the rows.
        OptionsError: there is no such weighting, it lacks entropies, fails, or returns what cannot be a weight.
        ValueError: shapes that do not belong together.
    """
    weighting = load(weights) if isinstance(weights, str) else weights
    applied = apply_weighting(weighting, log_probs, advantages, response_mask, group, entropies, step)
    return applied.advantages, applied.sums.statistics()


@dataclass(frozen=True)
class Applied:
    """What a weighting makes of some rows.

    Attributes:
        advantages: w~ A of every token, 0 where the mask is 0.
        weights: w~ of every token, on the CPU, for token records; None if they are not kept.
        sums: what the statistics are made of; several processes can add up theirs.
        seconds: that the weights took.
    """

    advantages: Float[Tensor, "rows time"]
    weights: Float[Tensor, "rows time"] | None
    sums: Sums
    seconds: float


def apply_weighting(
    weighting: Weighting,
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
    group: Int[Tensor, " rows"] | None,
    entropies: Float[Tensor, "rows time"] | None,
    step: int,
    keeps_weights: bool = False,
) -> Applied:
    """As :func:`reweight`, but with what the statistics and the token records are made of.

    A group's weights do not depend on the order of its rows, on padding, on rows without valid tokens, or on other
    groups of the batch. A group that has no valid token has weight 0 everywhere, and takes no part in the sums.
    """
    started = time.perf_counter()
    entropies = needed_entropies(weighting, entropies)
    check_shapes(log_probs, advantages, response_mask, group, entropies)
    device, weighting = log_probs.device, checked(weighting)
    log_probs, advantages, valid = (values.cpu() for values in _prepared(log_probs, advantages, response_mask))
    entropies = None if entropies is None else entropies.detach().to(log_probs.dtype).cpu()
    group = torch.zeros(len(log_probs), dtype=torch.long) if group is None else group.cpu()
    batch_entropy = None
    if weighting.needs_batch_entropy and entropies is not None:
        # Without those that are not finite, since their own group is refused; NaN if no token is valid.
        batch_entropy = float(entropies[valid & entropies.isfinite()].double().mean())
    a, x = advantages.numpy(), log_probs.numpy()
    h = None if entropies is None else entropies.numpy()
    result = np.zeros(x.shape, x.dtype)
    kept = np.zeros(x.shape, x.dtype) if keeps_weights else None
    sums, refused = Sums(), []
    is_valid = valid.numpy()
    lengths = is_valid.sum(1)
    for rows_in_batch in rows_of_groups(group):
        rows_with_tokens = rows_in_batch[lengths[rows_in_batch] > 0]
        if len(rows_with_tokens) == 0:
            continue
        rows = in_own_order(rows_with_tokens, lengths, is_valid, a, x, h)
        valid_here, lengths_here = is_valid[rows], lengths[rows]
        tokens = Group(
            log_probs=take(x[rows], valid_here, lengths_here),
            advantages=take(a[rows], valid_here, lengths_here),
            known_entropies=None if h is None else take(h[rows], valid_here, lengths_here),
            mask=valid_here,
            step=step,
            known_batch_entropy=batch_entropy,
        )
        if not has_finite_values(tokens):
            refused.append(rows)
            continue
        w, weight = token_weights(tokens, weighting)
        weighted = weight * tokens.advantages
        sums_here = sums_of_group(tokens, w, weighted)
        if sums_here.is_finite:
            result[rows] = put(weighted, valid_here)
            if kept is not None:
                kept[rows] = put(weight, valid_here)
            sums += sums_here
        else:
            refused.append(rows)
    if refused:
        of_refused = torch.from_numpy(np.sort(np.concatenate(refused)))
        raise non_finite_error(log_probs, advantages, valid, of_refused, entropies)
    advantages = torch.from_numpy(result).to(device)
    weights = None if kept is None else torch.from_numpy(kept)
    return Applied(advantages, weights, sums, time.perf_counter() - started)


def reweight_micro_batch(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
) -> tuple[Float[Tensor, "rows time"], CovarianceStatistics]:
    """As :func:`reweight` for a batch that is one group, with the paper's kernel, on the device of the tensors.

    A policy loss calls it once for each micro-batch, where a copy to the CPU would wait for the GPU's queue.
    """
    check_shapes(log_probs, advantages, response_mask)
    log_probs, advantages, valid = _prepared(log_probs, advantages, response_mask)
    of_tokens = advantages if advantages.ndim == 2 else advantages[:, None].expand(valid.shape)
    places = valid.flatten().nonzero()[:, 0]  # PyTorch selects several times faster with one index than with two
    x, a = (values.flatten().index_select(0, places) for values in (log_probs, of_tokens))
    tokens = Group(x, a, None, valid)
    if len(x) == 0:
        return torch.zeros_like(log_probs), Sums().statistics()
    w, weight = token_weights(tokens)
    weighted = weight * a
    sums = sums_of_group(tokens, w, weighted)
    if not sums.is_finite:
        raise non_finite_error(log_probs, advantages, valid, torch.arange(len(valid), device=valid.device))
    result = torch.zeros_like(log_probs).flatten().index_copy(0, places, weighted)
    return result.view_as(log_probs), sums.statistics()


def _prepared(
    log_probs: Float[Tensor, "rows time"],
    advantages: Float[Tensor, " rows"] | Float[Tensor, "rows time"],
    response_mask: Shaped[Tensor, "rows time"],
) -> tuple[Float[Tensor, "rows time"], Float[Tensor, "..."], Bool[Tensor, "rows time"]]:
    """Log-probs and advantages in one dtype, float32 or float64, without their gradients; and a mask of booleans."""
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    return log_probs.detach().to(dtype), advantages.detach().to(dtype), as_booleans(response_mask)
