"""The weightings once more, token by token in float64, as their papers and authors' code have them.

A function gets the log-probs x, advantages a and entropies h of a group's tokens, and returns their weights, as they
are used. Some get the mean entropy of the batch, or the response of each token, too. The other arguments are settings.
Where tokens are drawn at random, see test_weightings.py.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Sequence

import torch
from reference import mean

Tokens = Sequence[float]


def _gaussian_of(c: Tokens) -> list[float]:
    average = mean(c)
    sigma = math.sqrt(mean((value - average) ** 2 for value in c))
    if abs(average) >= 10 * sigma:
        return [1.0] * len(c)
    w = [math.exp(-(value**2) / (2 * sigma**2)) for value in c]
    mean_w = mean(w)
    return [value / mean_w for value in w]


def covariances(x: Tokens, a: Tokens) -> list[float]:
    mean_x, mean_a = mean(x), mean(a)
    return [(one - mean_x) * (other - mean_a) for one, other in zip(x, a, strict=True)]


def gaussian(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    return _gaussian_of(covariances(x, a))


def state(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    average = mean(a)
    return _gaussian_of([(x[i] + h[i]) * (a[i] - average) for i in range(len(x))])


def none(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    return [1.0] * len(x)


def ar(x: Tokens, a: Tokens, h: Tokens, alpha: float = 0.2) -> list[float]:
    return [alpha * math.exp(value) + (1 - alpha) for value in x]


def stare(x: Tokens, a: Tokens, h: Tokens, share: float = 0.1, weight: float = 1.1) -> list[float]:
    good = [i for i in range(len(x)) if a[i] > 0]
    count = max(1, int(len(good) * share + 0.999999)) if good else 0  # as in the authors' code
    chosen = set(sorted(good, key=lambda i: -x[i], reverse=True)[:count])
    return [weight if i in chosen else 1.0 for i in range(len(x))]


def stare_gated(
    x: Tokens, a: Tokens, h: Tokens, batch_entropy: float, target_entropy: float = 0.3, **settings: float
) -> list[float]:
    return stare(x, a, h, **settings) if batch_entropy < target_entropy else none(x, a, h)


def drop_top_cov(x: Tokens, a: Tokens, h: Tokens, share: float = 0.002) -> list[float]:
    k_percent = 100 * share
    c = covariances(x, a)
    dropped = sorted(range(len(c)), key=c.__getitem__)[-max(1, int(len(c) * k_percent / 100)) :]
    return [0.0 if i in dropped else 1.0 for i in range(len(c))]


def positive_weight(x: Tokens, a: Tokens, h: Tokens, weight: float = 0.1) -> list[float]:
    return [weight if value > 0 else 1.0 for value in a]


def high_entropy(x: Tokens, a: Tokens, h: Tokens, share: float = 0.2) -> list[float]:
    """The authors' ``loss_mask=response_mask * entropy_top_mask``, whose loss is then divided by the tokens kept."""
    kept = sorted(range(len(h)), key=lambda i: h[i], reverse=True)[: max(1, int(len(h) * share + 0.9999))]
    return [len(h) / len(kept) if i in kept else 0.0 for i in range(len(h))]


def _omega(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    omega = []
    for log_pi, advantage, entropy in zip(x, a, h, strict=True):
        pi = max(math.exp(log_pi), 1e-8)
        omega.append(abs(advantage / pi * pi * (1 - pi) * (math.log(pi) + entropy)))
    return omega


def steer(x: Tokens, a: Tokens, h: Tokens, low: float = 0.8, high: float = 1.2) -> list[float]:
    omega = _omega(x, a, h)
    least, most = min(omega), max(omega)
    if most == least:
        return [(low + high) / 2] * len(x)
    return [high - (value - least) * (high - low) / (most - least) for value in omega]


def steer_exp(x: Tokens, a: Tokens, h: Tokens, low: float = 0.8, floor: float = 0.02) -> list[float]:
    omega = _omega(x, a, h)
    k = -math.log(low) / max(max(omega), floor)
    return [max(low, math.exp(-k * value)) for value in omega]


def entropy_advantage(x: Tokens, a: Tokens, h: Tokens, alpha: float = 0.4, kappa: float = 2.0) -> list[float]:
    shaped = [advantage + min(alpha * entropy, abs(advantage) / kappa) for advantage, entropy in zip(a, h, strict=True)]
    return [new / old if old else 1.0 for new, old in zip(shaped, a, strict=True)]


def repo_r(x: Tokens, a: Tokens, h: Tokens, zeta: float = 0.01) -> list[float]:
    """Where A > 0, A (1 - zeta log pi) but not below 0; where A < 0, A (1 + zeta log pi) but not above 0."""
    weights = []
    for log_pi, advantage in zip(x, a, strict=True):
        if advantage > 0:
            weights.append(max(0.0, advantage * (1 - zeta * log_pi)) / advantage)
        elif advantage < 0:
            weights.append(min(0.0, advantage * (1 + zeta * log_pi)) / advantage)
        else:
            weights.append(1.0)
    return weights


def aepo(x: Tokens, a: Tokens, h: Tokens, scale: float = 0.2) -> list[float]:
    average = mean(h)
    deviation = statistics.stdev(h) if len(h) > 1 else 0.0
    return [max(0.0, 1 + scale * (value - average) / (deviation or 1.0)) for value in h]


def _of_responses(values: Tokens, response: Sequence[int]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for value, row in zip(values, response, strict=True):
        found.setdefault(row, []).append(value)
    return found


def gtpo_simplified(x: Tokens, a: Tokens, h: Tokens, response: Sequence[int], beta: float = 0.1) -> list[float]:
    weights = []
    of_responses = _of_responses([min(-log_pi, 50.0) for log_pi in x], response)
    for log_pi, row in zip(x, response, strict=True):
        average = mean(of_responses[row])
        ratio = min(-log_pi, 50.0) / (average + 1e-8)
        weights.append(max(0.0, 1.0 + beta * (ratio - 1.0)) if average >= 1e-7 else 1.0)
    return weights


def eda(x: Tokens, a: Tokens, h: Tokens, response: Sequence[int]) -> list[float]:
    per_entropy_mean = {row: mean(values) for row, values in _of_responses(h, response).items()}
    return [1 / per_entropy_mean[row] * mean(per_entropy_mean.values()) for row in response]


def empg(x: Tokens, a: Tokens, h: Tokens, response: Sequence[int], k: float = 1.0) -> list[float]:
    steps = {row: mean(values) for row, values in _of_responses(h, response).items()}
    low, high = min(steps.values()), max(steps.values())
    g = {row: math.exp(-k * (value - low) / (high - low + 1e-8)) for row, value in steps.items()}
    return [g[row] / (mean(g.values()) + 1e-8) for row in response]


WEIGHTINGS: dict[str, Callable[..., list[float]]] = {
    function.__name__: function
    for function in (
        gaussian, none, ar, stare, stare_gated, drop_top_cov, positive_weight, high_entropy, steer,
        steer_exp, entropy_advantage, repo_r, aepo, gtpo_simplified, eda, empg, state,
    )
}  # fmt: skip
OF_LITERATURE = [name for name in WEIGHTINGS if name not in ("gaussian", "none")]
OF_BATCH = ("stare_gated",)  # those that get the mean entropy of the batch
OF_RESPONSES = ("gtpo_simplified", "eda", "empg")  # those that get the response of each token


def reference_weights(
    name: str,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    uids: Sequence[Hashable],
    entropies: torch.Tensor,
    **settings: float,
) -> torch.Tensor:
    """Weights (rows, time), float64, 0 off the mask. Advantages are of responses, or the same for all tokens of a
    response."""
    result = torch.zeros(mask.shape, dtype=torch.float64)
    of_tokens = (advantages if advantages.ndim == 2 else advantages[:, None].expand(mask.shape)).double()
    of_batch = {"batch_entropy": mean(entropies[mask != 0].tolist())} if name in OF_BATCH else {}
    uids = uids.tolist() if hasattr(uids, "tolist") else list(uids)
    for uid in dict.fromkeys(uids):
        of_group = torch.tensor([other == uid for other in uids])
        places = ((mask != 0) & of_group[:, None]).nonzero(as_tuple=True)
        if len(places[0]):
            x, a, h = (values[places].tolist() for values in (log_probs, of_tokens, entropies))
            of_responses = {"response": places[0].tolist()} if name in OF_RESPONSES else {}
            weights = WEIGHTINGS[name](x, a, h, **of_batch, **of_responses, **settings)
            result[places] = torch.tensor(weights, dtype=torch.float64)
    return result


def reference_weighted(
    name: str,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    uids: Sequence[Hashable],
    entropies: torch.Tensor,
    **settings: float,
) -> torch.Tensor:
    """Weighted advantages (rows, time), float64, 0 off the mask; arguments as in :func:`reference_weights`."""
    weights = reference_weights(name, log_probs, advantages, mask, uids, entropies, **settings)
    of_tokens = (advantages if advantages.ndim == 2 else advantages[:, None].expand(mask.shape)).double()
    return torch.where(mask != 0, weights * of_tokens, 0.0)
