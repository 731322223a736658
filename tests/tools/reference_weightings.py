"""The weightings once more, token by token in float64, as their papers and authors' code have them.

A function gets the log-probs x, advantages a and entropies h of a group's tokens, and returns their weights, as they
are used. Some get the mean entropy of the batch, too. Where tokens are drawn at random, see test_weightings.py.
"""

import math
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


def ar(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    return [0.2 * math.exp(value) + 0.8 for value in x]


def stare(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    good = [i for i in range(len(x)) if a[i] > 0]
    count = max(1, int(len(good) * 0.1 + 0.999999)) if good else 0  # as in the authors' code
    chosen = set(sorted(good, key=lambda i: -x[i], reverse=True)[:count])
    return [1.1 if i in chosen else 1.0 for i in range(len(x))]


def stare_gated(x: Tokens, a: Tokens, h: Tokens, batch_entropy: float) -> list[float]:
    return stare(x, a, h) if batch_entropy < 0.3 else none(x, a, h)


def drop_top_cov(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    c = covariances(x, a)
    dropped = sorted(range(len(c)), key=c.__getitem__)[-max(1, int(len(c) * 0.2 / 100)) :]
    return [0.0 if i in dropped else 1.0 for i in range(len(c))]


def positive_weight(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    return [0.1 if value > 0 else 1.0 for value in a]


def high_entropy(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    """The authors' ``loss_mask=response_mask * entropy_top_mask``, whose loss is then divided by the tokens kept."""
    kept = sorted(range(len(h)), key=lambda i: h[i], reverse=True)[: max(1, int(len(h) * 0.2 + 0.9999))]
    return [len(h) / len(kept) if i in kept else 0.0 for i in range(len(h))]


def _omega(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    omega = []
    for log_pi, advantage, entropy in zip(x, a, h, strict=True):
        pi = max(math.exp(log_pi), 1e-8)
        omega.append(abs(advantage / pi * pi * (1 - pi) * (math.log(pi) + entropy)))
    return omega


def steer(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    omega = _omega(x, a, h)
    least, most = min(omega), max(omega)
    return [1.2 - (value - least) * (1.2 - 0.8) / (most - least) if most > least else 1.0 for value in omega]


def steer_exp(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    omega = _omega(x, a, h)
    k = -math.log(0.8) / max(max(omega), 0.02)
    return [max(0.8, math.exp(-k * value)) for value in omega]


def entropy_advantage(x: Tokens, a: Tokens, h: Tokens) -> list[float]:
    shaped = [advantage + min(0.4 * entropy, abs(advantage) / 2) for advantage, entropy in zip(a, h, strict=True)]
    return [new / old if old else 1.0 for new, old in zip(shaped, a, strict=True)]


WEIGHTINGS: dict[str, Callable[..., list[float]]] = {
    function.__name__: function
    for function in (
        gaussian, none, ar, stare, stare_gated, drop_top_cov, positive_weight, high_entropy, steer,
        steer_exp, entropy_advantage, state,
    )
}  # fmt: skip
OF_BATCH = ("stare_gated",)  # those that get the mean entropy of the batch


def reference_weighted(
    name: str,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    uids: Sequence[Hashable],
    entropies: torch.Tensor,
) -> torch.Tensor:
    """Weighted advantages (rows, time), float64, 0 off the mask. Advantages are of responses, or the same for all
    tokens of a response."""
    result = torch.zeros(mask.shape, dtype=torch.float64)
    of_tokens = (advantages if advantages.ndim == 2 else advantages[:, None].expand(mask.shape)).double()
    of_batch = {"batch_entropy": mean(entropies[mask != 0].tolist())} if name in OF_BATCH else {}
    uids = uids.tolist() if hasattr(uids, "tolist") else list(uids)
    for uid in dict.fromkeys(uids):
        of_group = torch.tensor([other == uid for other in uids])
        places = ((mask != 0) & of_group[:, None]).nonzero(as_tuple=True)
        if len(places[0]):
            x, a, h = (values[places].tolist() for values in (log_probs, of_tokens, entropies))
            weights = torch.tensor(WEIGHTINGS[name](x, a, h, **of_batch), dtype=torch.float64)
            result[places] = weights * of_tokens[places]
    return result
