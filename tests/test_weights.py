"""The mathematics against a float64 loop, on the CPU and on a device."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from own_weightings import cauchy
from pretend_device import DEVICE, Pretend, on_device
from random_batches import random_batch
from reference import mean, reference_advantages

from cw_plugin.registry import weighting
from cw_plugin.reweight import reweight, reweight_micro_batch


def loop(log_probs, advantages, mask, group):
    """Reweighted advantages and the groups, by the float64 loop."""
    reweighted, groups = reference_advantages(log_probs, advantages, mask, group)
    return torch.tensor(reweighted, dtype=torch.float64).reshape(mask.shape), list(groups.values())


def statistics_of(groups) -> dict[str, float]:
    c, w, x, a = (np.concatenate([g[name] for g in groups]) for name in "cwxa")
    signal = [g["sigma"] for g in groups if not g["alike"]]
    gradient = a**2 * (1 - np.exp(x)) ** 2
    extreme = w < 0.5
    return {
        "sigma": mean(signal or [0]),
        "signal_share": len(signal) / len(groups),
        "weight_mean": mean(w),
        "weight_min": w.min(),
        "effective_sample_share": sum(g["w"].sum() ** 2 / (g["w"] ** 2).sum() for g in groups) / len(c),
        "downweighted_share": mean(extreme),
        "covariance_before": mean(c),
        "covariance_after": sum(((g["x"] - mean(g["x"])) * g["weights"] * g["a"]).sum() for g in groups) / len(c),
        "covariance_max": max(c.max(), 0),
        "covariance_min": min(c.min(), 0),
        "extreme_gradient_share": gradient[extreme].sum() / (gradient.sum() or 1),
        "extreme_balance": c[extreme].sum() / (abs(c[extreme]).sum() or 1),
    }


@pytest.mark.parametrize(("holes", "scale"), [(0.0, 1.0), (0.1, 0.02)])
def test_weights_and_statistics_match_the_float64_loop(holes, scale):
    """Rows in any order, rubbish off the mask, advantages of responses and of tokens (as GAE has them), an empty
    response, a padding row, a group of equal advantages, and numbers of groups that are not consecutive."""
    log_probs, of_responses, mask, group = random_batch(0, holes=holes, scale=scale)
    mask[7], mask[11], group[11] = False, False, 99
    log_probs[~mask] = math.nan
    of_responses[group == group[0]] = 0.5
    for advantages in (of_responses, torch.randn(mask.shape, generator=torch.Generator().manual_seed(3))):
        expected, groups = loop(log_probs, advantages, mask, group)
        assert any(g["alike"] for g in groups) == (advantages is of_responses)
        reweighted, statistics = reweight(log_probs.clone().requires_grad_(), advantages, mask, 7 * group - 3)
        assert reweighted.dtype == torch.float32 and not reweighted.requires_grad
        torch.testing.assert_close(reweighted.double(), expected, rtol=1e-6, atol=1e-6)
        assert vars(statistics) == pytest.approx(statistics_of(groups), rel=1e-6, abs=1e-8)


@st.composite
def batches(draw):
    rows, width = draw(st.integers(1, 8)), draw(st.integers(1, 12))

    def values(elements, *shape):
        flat = draw(st.lists(elements, min_size=math.prod(shape), max_size=math.prod(shape)))
        return torch.tensor(flat).reshape(shape)

    eighths = st.integers(-32, 32).map(lambda i: i / 8)
    log_probs, mask = values(st.floats(-30, 0, width=32), rows, width), values(st.booleans(), rows, width)
    return log_probs, values(eighths, rows), mask, values(st.integers(0, rows - 1), rows)


@settings(max_examples=100)
@given(batch=batches())
def test_any_batch_is_finite_and_matches_the_loop(batch):
    log_probs, advantages, mask, _ = batch
    reweighted, statistics = reweight(*batch)
    assert torch.isfinite(reweighted).all() and (reweighted[~mask] == 0).all()
    assert all(map(math.isfinite, vars(statistics).values()))
    expected, groups = loop(*batch)
    size = (log_probs.abs().max() * advantages.abs().max()).item()
    for g in groups:  # no float resolves a tiny sigma, nor on which side of 10 |mean c| / sigma is
        assume(g["sigma"] == 0 or (g["sigma"] > 1e-3 * size and not 5 < abs(mean(g["c"])) / g["sigma"] < 20))
    torch.testing.assert_close(reweighted.double(), expected, rtol=1e-3, atol=1e-3)


def test_a_mask_is_what_is_not_zero_in_any_dtype():
    log_probs, advantages, mask, group = random_batch(1)
    expected, _ = reweight(log_probs, advantages, mask, group)
    for dtype, value in {torch.uint8: 255, torch.int64: -1, torch.float32: 0.5, torch.bfloat16: 2}.items():
        values = torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, value)
        values[::2] = mask[::2].to(dtype)  # 1 beside it
        assert torch.equal(reweight(log_probs, advantages, values, group)[0], expected), dtype


def test_sums_are_exact_where_float32_would_lose_tokens():
    """A group of 300,000 tokens, its log-probs in a narrow band far from 0; and half precision."""
    log_probs, advantages, mask, _ = random_batch(13, groups=1, responses=75, width=8192, scale=0.02)
    half, one_group = log_probs[:8].bfloat16(), torch.zeros(len(mask))
    expected, _ = loop(half.float(), advantages[:8], mask[:8], one_group[:8])
    reweighted, _ = reweight(half, advantages[:8], mask[:8])
    torch.testing.assert_close(reweighted.double(), expected, rtol=1e-5, atol=1e-5)
    log_probs -= 4
    expected, groups = loop(log_probs, advantages, mask, one_group)
    reweighted, statistics = reweight(log_probs, advantages, mask)
    torch.testing.assert_close(reweighted.double(), expected, rtol=2e-6, atol=2e-6)
    of_single_tokens = {"covariance_max", "covariance_min", "weight_min"}  # as exact as float32 values, not as sums
    for name, value in statistics_of(groups).items():
        rel = 1e-3 if name in of_single_tokens else 1e-6
        small = 1e-7 if name == "extreme_balance" else 1e-9  # a difference of sums, divided by their total
        assert getattr(statistics, name) == pytest.approx(value, rel=rel, abs=small), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("log_probs", "advantages", "mask"),
    [
        ([[-0.1, -2.0], [-0.7, -0.3]] * 6, [0.1] * 12, [[1, 1]] * 12),  # equal advantages
        ([[-0.1, -2.0]], [0.7], [[0, 1]]),  # one token
        ([[-0.3, -0.3], [-0.3, -0.3]], [1.0, -1.0], [[1, 1], [1, 1]]),  # equal log-probs
        ([[-0.123], [-2.7]], [0.3, -0.9], [[1], [1]]),  # two tokens: one covariance, rounded twice
    ],
)
def test_no_spread_of_covariance_means_weight_one(dtype, log_probs, advantages, mask):
    mask, advantages = torch.tensor(mask), torch.tensor(advantages, dtype=dtype)
    reweighted, statistics = reweight(torch.tensor(log_probs, dtype=dtype), advantages, mask)
    assert torch.equal(reweighted, mask * advantages[:, None])
    assert statistics.signal_share == statistics.sigma == statistics.downweighted_share == 0
    assert statistics.weight_mean == 1 and statistics.effective_sample_share == pytest.approx(1)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("d", "alike"), [(0.198, True), (0.202, False)])
def test_covariances_alike_by_ten_sigma_mean_weight_one_and_otherwise_not(d, alike, sign):
    """Log-probs -3, -3 - d against -1, -1 - d, with advantages -1 and 1: mean(c) is 1, and sigma d / 2."""
    log_probs, advantages = torch.tensor([[-3.0, -3.0 - d], [-1.0, -1.0 - d]]), sign * torch.tensor([-1.0, 1.0])
    reweighted, statistics = reweight(log_probs, advantages, torch.ones(2, 2))
    assert (statistics.signal_share == 0) == alike
    assert torch.equal(reweighted, advantages[:, None].expand(2, 2)) == alike


@pytest.mark.parametrize("function", [reweight, reweight_micro_batch])
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (3, 5)])
def test_no_valid_token_at_all(shape, function):
    reweighted, statistics = function(torch.randn(shape), torch.ones(shape[0]), torch.zeros(shape))
    assert reweighted.shape == shape and (reweighted == 0).all()
    assert set(vars(statistics).values()) == {0.0}


@pytest.mark.parametrize(("huge", "size"), [(-1e19, 1), (-3e38, 1), (-1, 1e19)])
def test_huge_values_are_weighted(huge, size):
    """At an advantage of 1e19, A^2 is infinite in float32, and every weighted advantage is finite."""
    log_probs, advantages, mask, group = random_batch(15)
    log_probs[tuple(mask.nonzero()[7].tolist())] = huge
    expected, groups = loop(log_probs, size * advantages, mask, group)
    reweighted, statistics = reweight(log_probs, size * advantages, mask, group)
    torch.testing.assert_close(reweighted.double() / size, expected / size, rtol=1e-6, atol=1e-6)
    share = statistics_of(groups)["extreme_gradient_share"]
    assert statistics.signal_share == 1 and statistics.extreme_gradient_share == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("size", [1e10, 1e-39])
def test_covariances_that_float32_cannot_hold_are_weighted(size):
    """Every c is infinite in float32; or 0 but for its last digits."""
    log_probs = torch.tensor([[-6.0, -5.0], [-1.0, 0.0]]) * (1e30 if size > 1 else 1)
    advantages, mask = torch.tensor([size, -size]), torch.ones(2, 2)
    reweighted, _ = reweight(log_probs, advantages, mask)
    expected, _ = loop(log_probs, advantages, mask, torch.zeros(2))
    assert not torch.allclose(expected / advantages[:, None], torch.ones(2, 2).double(), rtol=0.01)
    torch.testing.assert_close(reweighted.double(), expected, rtol=1e-5, atol=2e-45)


@pytest.mark.parametrize(("vocabulary", "tolerance"), [(2, 1e-5), (64, 0.03)])
def test_the_extreme_tokens_share_of_the_gradient_is_that_of_autograd(vocabulary, tolerance):
    """The squared norm with respect to a token's logits is A^2 ((1 - pi)^2 + the others' squared probabilities): with
    two tokens to choose from 2 A^2 (1 - pi)^2, so that the share is exact; with more it is close."""
    g = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(8, 50, vocabulary, generator=g)).requires_grad_()
    actions = torch.distributions.Categorical(logits=logits.detach()).sample()
    log_probs = logits.log_softmax(-1).gather(-1, actions[..., None])[..., 0]
    advantages, mask = torch.randn(8, generator=g), torch.rand(8, 50, generator=g) < 0.8
    (gradient,) = torch.autograd.grad((log_probs * advantages[:, None] * mask).sum(), logits)
    squared = gradient.double().square().sum(-1)[mask]
    _, statistics = reweight(log_probs.detach(), advantages, mask)
    _, (group,) = loop(log_probs.detach(), advantages, mask, torch.zeros(8))
    extreme = torch.tensor(group["w"] < 0.5)
    assert 0 < extreme.double().mean() < 0.3
    share = (squared[extreme].sum() / squared.sum()).item()
    assert statistics.extreme_gradient_share == pytest.approx(share, abs=tolerance)


def test_weights_none_are_weight_one_with_the_statistics_of_plain_grpo():
    log_probs, advantages, mask, _ = random_batch(12)
    plain, none = reweight(log_probs, advantages, mask, weights="none")
    _, weighed = reweight(log_probs, advantages, mask)
    assert torch.equal(plain, advantages[:, None] * mask) and weighed.sigma > 0
    ones = dict.fromkeys(("weight_mean", "weight_min", "effective_sample_share"), 1)
    none_extreme = {"downweighted_share": 0, "covariance_after": weighed.covariance_before}
    assert vars(none) == pytest.approx(vars(weighed) | ones | none_extreme, rel=1e-4)


def test_a_weighting_of_ones_own_gets_c_over_sigma():
    log_probs, advantages, mask, _ = random_batch(13)
    _, (group,) = loop(log_probs, advantages, mask, torch.zeros(len(mask)))
    w = torch.tensor(1 / (1 + abs(group["c"] / group["sigma"])))

    def own_function(group):  # in place: it gets copies
        weights = 1 / (1 + group.z.abs_())
        for values in (group.log_probs, group.advantages, group.mask):
            values[:] = 0
        return weights

    own = weighting(scaled=True)(own_function)
    reweighted, statistics = reweight(log_probs, advantages, mask, weights=own)
    expected = torch.tensor(group["a"]) * w / w.mean()
    torch.testing.assert_close(reweighted[mask].double(), expected, rtol=1e-6, atol=1e-6)
    assert statistics.weight_min == pytest.approx(w.min().item())
    assert statistics.downweighted_share == pytest.approx((w < 0.5).double().mean().item())
    of_gaussian, gaussian = reweight(log_probs, advantages, mask)  # what is extreme does not depend on the weighting
    assert statistics.extreme_gradient_share == gaussian.extreme_gradient_share
    by_name, _ = reweight(log_probs, advantages, mask, weights="cw_plugin.weights:gaussian")
    assert torch.equal(by_name, of_gaussian)


@pytest.mark.parametrize("weights", ["none", "gaussian"])
def test_entropy_changes_by_minus_eta_times_the_covariance(weights):
    """A tabular softmax policy with exact natural gradient, whose step adds eta A to the logits (section 2.2).

    Actions stand in the batch as often as they are probable, so that the batch's covariance is the policy's.
    """
    counts = torch.tensor([400, 250, 150, 100, 60, 30, 9, 1])
    policy = counts.double() / counts.sum()
    advantage = torch.tensor([0.3, -1.1, 0.8, 1.5, -0.4, 2.5, -2.0, 3.0], dtype=torch.float64)
    action = torch.repeat_interleave(torch.arange(len(counts)), counts)
    x, a = policy.log()[action][None], advantage[action][None]
    reweighted, statistics = reweight(x, a, torch.ones_like(x, dtype=torch.long), weights=weights)
    weighted = torch.zeros_like(advantage).index_copy_(0, action, reweighted[0])  # one for each action
    covariance = statistics.covariance_before if weights == "none" else statistics.covariance_after
    assert abs(covariance) > 0.05

    def entropy(p: torch.Tensor) -> float:
        return -(p * p.log()).sum().item()

    eta = 1e-4  # first order: what is left falls with eta
    change = entropy(torch.softmax(policy.log() + eta * weighted, 0)) - entropy(policy)
    assert change == pytest.approx(-eta * covariance, rel=1e-3)


@pytest.mark.parametrize("weights", ["gaussian", "none", cauchy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("groups", [1, 7])
def test_on_a_device_weights_are_those_of_the_cpu(weights, dtype, groups):
    """Each tensor is copied once. reweight_micro_batch copies nothing but the number of tokens and the statistics."""
    log_probs, advantages, mask, group = random_batch(20, groups)
    batch = log_probs.to(dtype), advantages.to(dtype), mask
    for one_or_more in (group, None):
        expected, statistics = reweight(*batch, one_or_more, weights)
        with Pretend() as device:
            found, found_statistics = reweight(*on_device(batch), one_or_more, weights)
        assert found.device == DEVICE and torch.equal(found.memory, expected) and found_statistics == statistics
        assert (device.downloads, device.uploads) == (3, 1)
    if weights == "gaussian":
        with Pretend() as device:
            found, found_statistics = reweight_micro_batch(*on_device(batch))
        assert found.device == DEVICE
        torch.testing.assert_close(found.memory, expected, rtol=1e-6, atol=0)  # rows are added up in another order
        assert vars(found_statistics) == pytest.approx(vars(statistics), rel=1e-9)
        assert (device.downloads, device.uploads) == (2, 0)
