"""The mathematics against a float64 loop, and the properties that sharding and batching rely on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import reference_weights

from cw_plugin.errors import NonFiniteError, OptionsError
from cw_plugin.weights import reweight


def random_batch(seed: int, groups: int = 5, responses: int = 6, width: int = 40, scale: float = 1.0):
    """Ragged rows of shuffled groups, masks with holes, verl-like log-probs (rows, width) and advantages (rows,)."""
    g = torch.Generator().manual_seed(seed)
    rows = groups * responses
    group = torch.arange(rows)[torch.randperm(rows, generator=g)] % groups
    lengths = torch.randint(1, width + 1, (rows,), generator=g)
    mask = (torch.arange(width) < lengths[:, None]) & (torch.rand(rows, width, generator=g) > 0.1)
    log_probs = -scale * torch.rand(rows, width, generator=g).exp().sub(1).pow(3)
    advantages = torch.randn(rows, generator=g)
    return log_probs, advantages, mask, group


def loop(log_probs, advantages, mask, group):
    """Reweighted advantages and the statistics of each group, by the float64 loop."""
    weights, groups = reference_weights(log_probs.tolist(), advantages.tolist(), mask.tolist(), group.tolist())
    return torch.tensor(weights, dtype=torch.float64) * advantages.double()[:, None], groups


def loop_statistics(groups) -> dict[str, float]:
    tokens = sum(g["n"] for g in groups.values())
    signal = [g["sigma"] for g in groups.values() if not g["uniform"]]
    return {
        "sigma": sum(signal) / max(len(signal), 1),
        "signal_share": len(signal) / len(groups),
        "weight_mean": sum(g["sum_w"] for g in groups.values()) / tokens,
        "weight_min": min(g["min_w"] for g in groups.values()),
        "effective_sample_share": sum(g["sum_w"] ** 2 / g["sum_w2"] for g in groups.values()) / tokens,
        "downweighted_share": sum(g["low"] for g in groups.values()) / tokens,
        "covariance_before": sum(g["mean_c"] * g["n"] for g in groups.values()) / tokens,
        "covariance_after": sum(g["cov_after"] * g["n"] for g in groups.values()) / tokens,
        "covariance_max": max(0, *(g["max_c"] for g in groups.values()), 0),
        "covariance_min": min(0, *(g["min_c"] for g in groups.values()), 0),
        "extreme_gradient_share": share(groups, "extreme_gradient", "gradient"),
        "extreme_balance": share(groups, "extreme_c", "extreme_size"),
    }


def share(groups, part: str, whole: str) -> float:
    return sum(g[part] for g in groups.values()) / (sum(g[whole] for g in groups.values()) or 1)


@pytest.mark.parametrize("seed", range(3))
def test_weights_and_statistics_match_the_float64_loop(seed):
    """Rows in any order, with holes, rubbish off the mask, and numbers of groups that are not consecutive."""
    log_probs, advantages, mask, group = random_batch(seed)
    log_probs[~mask] = math.nan
    expected, groups = loop(log_probs, advantages, mask, group)
    for a in (advantages, advantages[:, None].expand(mask.shape)):
        reweighted, statistics = reweight(log_probs, a, mask, 7 * group - 3)
        assert reweighted.dtype == torch.float32
        torch.testing.assert_close(reweighted.double(), expected, rtol=1e-6, atol=1e-6)
        assert vars(statistics) == pytest.approx(loop_statistics(groups), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("value", [2, 255, -1, 0.5, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.bfloat16])
def test_a_mask_is_what_is_not_zero_in_any_dtype(value, dtype):
    log_probs, advantages, mask, group = random_batch(1)
    expected, _ = reweight(log_probs, advantages, mask, group)
    values = torch.zeros(mask.shape).masked_fill(mask, value)
    values[::2] = mask[::2].float()  # 1 beside it
    if not dtype.is_floating_point:
        values = values.sign() * values.abs().ceil()
    reweighted, _ = reweight(log_probs, advantages, values.to(dtype), group)
    assert torch.equal(reweighted, expected)


def test_advantages_that_differ_within_a_response():
    """GAE-like advantages, against the equations over the flat list of valid tokens."""
    log_probs, _, mask, _ = random_batch(0)
    advantages = torch.randn(log_probs.shape, generator=torch.Generator().manual_seed(3))
    x, a = log_probs[mask].double(), advantages[mask].double()
    c = (x - x.mean()) * (a - a.mean())
    w = torch.exp(-c.square() / (2 * c.var(unbiased=False)))
    reweighted, _ = reweight(log_probs, advantages, mask)
    torch.testing.assert_close(reweighted[mask].double(), a * w * len(w) / w.sum(), rtol=1e-5, atol=1e-5)
    assert (reweighted[~mask] == 0).all()


@st.composite
def batches(draw):
    rows = draw(st.integers(1, 8))
    width = draw(st.integers(1, 12))

    def matrix(elements):
        return torch.tensor(
            draw(st.lists(st.lists(elements, min_size=width, max_size=width), min_size=rows, max_size=rows))
        )

    log_probs, mask = matrix(st.floats(-30, 0, width=32)), matrix(st.booleans())
    eighths = st.integers(-32, 32).map(lambda i: i / 8)
    advantages = torch.tensor(draw(st.lists(eighths, min_size=rows, max_size=rows)))
    return (
        log_probs,
        advantages,
        mask,
        torch.tensor(draw(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows))),
    )


def well_conditioned(batch, groups) -> bool:
    """float32 does not resolve sigma where it is tiny beside what it is computed from, nor |mean c| / sigma near 10."""
    log_probs, advantages, _, _ = batch
    size = (log_probs.abs().max() * advantages.abs().max()).item()
    return all(
        g["sigma"] == 0 or (g["sigma"] > 1e-3 * size and not 5 < abs(g["mean_c"]) / g["sigma"] < 20)
        for g in groups.values()
    )


@settings(max_examples=100, deadline=None)
@given(batch=batches())
def test_any_batch_is_finite_and_matches_the_loop(batch):
    reweighted, statistics = reweight(*batch)
    _, advantages, mask, group = batch
    assert torch.isfinite(reweighted).all()
    assert (reweighted[~mask] == 0).all()
    # Weights are not negative and average 1 over a group, whatever sigma; seen where no A is 0.
    for g in group.unique():
        in_group = mask & (group == g)[:, None] & (advantages != 0)[:, None]
        weights = (reweighted / advantages[:, None])[in_group].double()
        assert (weights >= 0).all()
        if in_group.any() and (advantages[(group == g) & mask.any(1)] != 0).all():
            assert weights.mean().item() == pytest.approx(1, abs=1e-4)
    assert all(math.isfinite(value) for value in vars(statistics).values())
    assert 0 <= statistics.effective_sample_share <= 1 + 1e-6
    expected, groups = loop(*batch)
    assume(well_conditioned(batch, groups))
    torch.testing.assert_close(reweighted.double(), expected, rtol=1e-3, atol=1e-3)


def test_scale_and_shift_of_log_probs_and_scale_of_advantages_do_not_matter():
    """c and sigma scale alike: the method has no hyperparameter, down to the units."""
    log_probs, advantages, mask, group = random_batch(1)
    reweighted, _ = reweight(log_probs, advantages, mask, group)
    changed, _ = reweight(3 * log_probs - 1, 1e-6 * advantages, mask, group)
    torch.testing.assert_close(1e6 * changed, reweighted, rtol=1e-4, atol=1e-4)


def test_rows_in_any_order_give_the_same_answer():
    log_probs, advantages, mask, group = random_batch(2, groups=8, responses=8, width=300)
    reweighted, _ = reweight(log_probs, advantages, mask, group)
    order = torch.randperm(len(group), generator=torch.Generator().manual_seed(0))
    shuffled, _ = reweight(log_probs[order], advantages[order], mask[order], group[order])
    torch.testing.assert_close(shuffled, reweighted[order], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("extra", [1, 7, 1000])
def test_padding_width_changes_nothing(extra):
    log_probs, advantages, mask, group = random_batch(3)
    reweighted, _ = reweight(log_probs, advantages, mask, group)
    rubbish = torch.full((len(group), extra), -7.0)
    nothing = torch.zeros(len(group), extra, dtype=torch.bool)
    padded, _ = reweight(torch.cat([log_probs, rubbish], 1), advantages, torch.cat([mask, nothing], 1), group)
    torch.testing.assert_close(padded[:, : mask.shape[1]], reweighted, rtol=1e-6, atol=1e-7)
    assert (padded[:, mask.shape[1] :] == 0).all()


def test_a_group_does_not_depend_on_the_others():
    log_probs, advantages, mask, group = random_batch(4)
    reweighted, _ = reweight(log_probs, advantages, mask, group)
    mine = group == 2
    log_probs[~mine] = -log_probs[~mine].square()
    advantages[~mine] = advantages[~mine].exp()
    changed, _ = reweight(log_probs, advantages, mask, group)
    assert torch.equal(changed[mine], reweighted[mine])
    assert not torch.allclose(changed[~mine], reweighted[~mine])


def test_scope_batch_is_one_group():
    log_probs, advantages, mask, _ = random_batch(5)
    reweighted, _ = reweight(log_probs, advantages, mask, None)
    expected, _ = loop(log_probs, advantages, mask, torch.zeros(len(mask)))
    torch.testing.assert_close(reweighted.double(), expected, rtol=1e-5, atol=1e-5)


def test_sums_are_exact_where_float32_would_lose_tokens():
    """A group of 300,000 tokens, its log-probs in a narrow band far from 0."""
    log_probs, advantages, mask, _ = random_batch(13, groups=1, responses=75, width=8192, scale=0.02)
    log_probs -= 4
    expected, groups = loop(log_probs, advantages, mask, torch.zeros(len(mask)))
    reweighted, statistics = reweight(log_probs, advantages, mask)
    torch.testing.assert_close(reweighted.double(), expected, rtol=2e-6, atol=2e-6)
    of_single_tokens = {"covariance_max", "covariance_min", "weight_min"}  # as exact as float32 values, not as sums
    for name, value in loop_statistics(groups).items():
        rel = 1e-3 if name in of_single_tokens else 1e-6
        small = 1e-7 if name == "extreme_balance" else 1e-9  # a difference of sums, divided by their total
        assert getattr(statistics, name) == pytest.approx(value, rel=rel, abs=small), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float32(dtype):
    """4096 tokens a row: sums in half precision would lose most of them."""
    log_probs, advantages, mask, group = random_batch(7, groups=2, responses=4, width=4096)
    half = log_probs.to(dtype)
    reweighted, _ = reweight(half, advantages, mask, group)
    expected, _ = loop(half.float(), advantages, mask, group)
    assert reweighted.dtype == torch.float32
    torch.testing.assert_close(reweighted.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("log_probs", "advantages", "mask"),
    [
        pytest.param([[-0.1, -2.0], [-0.7, -0.3]], [0.0, 0.0], [[1, 1], [1, 1]], id="equal rewards"),
        pytest.param([[-0.1, -2.0], [-0.7, -0.3]], [0.1, 0.1], [[1, 1], [1, 1]], id="equal advantages, not 0"),
        pytest.param([[-0.1, -2.0, -0.4]], [0.7], [[1, 1, 1]], id="one response"),
        pytest.param([[-0.1, -2.0]], [0.7], [[0, 1]], id="one token"),
        pytest.param([[-0.3, -0.3], [-0.3, -0.3]], [1.0, -1.0], [[1, 1], [1, 1]], id="equal log-probs"),
        pytest.param([[-0.1], [-2.0]], [1.0, -1.0], [[1], [1]], id="two tokens: one covariance, not 0"),
        pytest.param([[-0.123], [-2.7]], [0.3, -0.9], [[1], [1]], id="two tokens, rounded differently"),
        pytest.param([[-0.1, -2.0], [-0.7, -0.3]] * 6, [0.1] * 12, [[1, 1]] * 12, id="a sum that is not exact"),
    ],
)
def test_no_spread_of_covariance_means_weight_one(dtype, log_probs, advantages, mask):
    mask, advantages = torch.tensor(mask), torch.tensor(advantages, dtype=dtype)
    reweighted, statistics = reweight(torch.tensor(log_probs, dtype=dtype), advantages, mask)
    assert torch.equal(reweighted, mask * advantages[:, None])
    assert statistics.signal_share == 0 and statistics.sigma == 0 and statistics.weight_mean == 1
    assert statistics.downweighted_share == 0 and statistics.effective_sample_share == pytest.approx(1)


@pytest.mark.parametrize(("d", "uniform"), [(0.05, True), (1.0, False)])
def test_covariances_alike_by_ten_sigma_mean_weight_one_and_otherwise_not(d, uniform):
    """Log-probs -3, -3 - d against -1, -1 - d, with advantages -1 and 1: c is near 1, with a spread that d sets."""
    log_probs, advantages = torch.tensor([[-3.0, -3.0 - d], [-1.0, -1.0 - d]]), torch.tensor([-1.0, 1.0])
    reweighted, statistics = reweight(log_probs, advantages, torch.ones(2, 2))
    assert (statistics.signal_share == 0) == uniform
    assert torch.equal(reweighted, advantages[:, None].expand(2, 2)) == uniform


def test_empty_responses_and_padding_rows_have_weight_zero_and_do_not_show():
    log_probs, advantages, mask, group = random_batch(8)
    reweighted, statistics = reweight(log_probs, advantages, mask, group)
    more, width = 3, mask.shape[1]  # an empty response of group 0, and two padding rows that are groups of their own
    padded, padded_statistics = reweight(
        torch.cat([log_probs, torch.zeros(more, width)]),
        torch.cat([advantages, torch.ones(more)]),
        torch.cat([mask, torch.zeros(more, width, dtype=torch.bool)]),
        torch.cat([group, torch.tensor([0, 10, 11])]),
    )
    torch.testing.assert_close(padded[:-more], reweighted)
    assert (padded[-more:] == 0).all()
    assert vars(padded_statistics) == pytest.approx(vars(statistics))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (3, 5)])
def test_no_valid_token_at_all(shape):
    reweighted, statistics = reweight(torch.randn(shape), torch.ones(shape[0]), torch.zeros(shape))
    assert reweighted.shape == shape and (reweighted == 0).all()
    assert set(vars(statistics).values()) == {0.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_log_probs_are_named_by_row_when_valid_and_ignored_when_masked(bad):
    log_probs, advantages, mask, _ = random_batch(9)
    expected, _ = reweight(log_probs, advantages, mask)
    log_probs[~mask] = bad
    reweighted, _ = reweight(log_probs, advantages, mask)
    torch.testing.assert_close(reweighted, expected)
    for row in (3, 17):
        log_probs[row, mask[row].nonzero()[0]] = bad
    with pytest.raises(NonFiniteError, match=r"log_probs.* 2 row\(s\): 3, 17\.") as raised:
        reweight(log_probs, advantages, mask)
    assert raised.value.rows == [3, 17]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_advantages_are_named_unless_the_row_is_empty(bad):
    log_probs, advantages, mask, _ = random_batch(10)
    mask[4] = False
    advantages[4] = bad
    assert torch.isfinite(reweight(log_probs, advantages, mask)[0]).all()
    advantages[5] = bad
    mask[5, 0] = True
    with pytest.raises(NonFiniteError, match=r"advantages.*: 5\."):
        reweight(log_probs, advantages, mask)


@pytest.mark.parametrize(("vocabulary", "tolerance"), [(2, 1e-5), (64, 0.03)])
def test_the_extreme_tokens_share_of_the_gradient_is_that_of_autograd(vocabulary, tolerance):
    """The policy gradient's squared norm with respect to each token's logits.

    It is A^2 ((1 - pi)^2 + the sum of the other tokens' squared probabilities). With two tokens to choose from that is
    2 A^2 (1 - pi)^2, so the share is exact; with more it is close.
    """
    g = torch.Generator().manual_seed(0)
    rows, time = 8, 50
    logits = (4 * torch.randn(rows, time, vocabulary, generator=g)).requires_grad_()
    log_policy = logits.log_softmax(-1)
    actions = torch.distributions.Categorical(logits=logits.detach()).sample()
    log_probs = log_policy.gather(-1, actions[..., None])[..., 0]
    advantages, mask = torch.randn(rows, generator=g), torch.rand(rows, time, generator=g) < 0.8
    (gradient,) = torch.autograd.grad((log_probs * advantages[:, None] * mask).sum(), logits)
    squared = gradient.double().square().sum(-1)
    x, a = log_probs.detach()[mask].double(), advantages[:, None].expand(rows, time)[mask].double()
    c = (x - x.mean()) * (a - a.mean())
    extreme = c.abs() > math.sqrt(2 * math.log(2)) * c.std(unbiased=False)
    assert 0 < extreme.double().mean() < 0.3
    for kernel in ("gaussian", "none"):
        _, statistics = reweight(log_probs.detach(), advantages, mask, kernel=kernel)
        share = squared[mask][extreme].sum() / squared[mask].sum()
        assert statistics.extreme_gradient_share == pytest.approx(share.item(), abs=tolerance)
        balance = c[extreme].sum() / c[extreme].abs().sum()
        assert statistics.extreme_balance == pytest.approx(balance.item(), abs=1e-4)


def test_no_gradient_flows_through_the_weights():
    log_probs, advantages, mask, group = random_batch(11)
    assert not reweight(log_probs.requires_grad_(), advantages, mask, group)[0].requires_grad


def test_kernel_none_is_weight_one_with_the_statistics_of_plain_grpo():
    log_probs, advantages, mask, _ = random_batch(12)
    plain, none = reweight(log_probs, advantages, mask, kernel="none")
    _, weighed = reweight(log_probs, advantages, mask)
    assert torch.equal(plain, advantages[:, None] * mask)
    unchanged = ("sigma", "signal_share", "covariance_before", "covariance_max", "covariance_min")
    for name in (*unchanged, "extreme_gradient_share", "extreme_balance"):
        assert getattr(none, name) == getattr(weighed, name)
    assert none.sigma > 0 and none.weight_min == none.weight_mean == 1 and none.downweighted_share == 0
    assert none.effective_sample_share == pytest.approx(1)
    assert none.covariance_after == pytest.approx(none.covariance_before, rel=1e-4)


def test_a_kernel_of_ones_own_gets_c_over_sigma_and_its_weights_are_normalised():
    log_probs, advantages, mask, _ = random_batch(13)
    x, a = log_probs[mask].double(), advantages[:, None].expand(mask.shape)[mask].double()
    c = (x - x.mean()) * (a - a.mean())
    w = 1 / (1 + (c / c.std(correction=0)).abs())
    reweighted, statistics = reweight(log_probs, advantages, mask, kernel=lambda z: 1 / (1 + z.abs_()))
    torch.testing.assert_close(reweighted[mask].double(), a * w / w.mean(), rtol=1e-6, atol=1e-6)
    assert statistics.weight_min == pytest.approx(w.min().item())
    assert statistics.downweighted_share == pytest.approx((w < 0.5).double().mean().item())
    _, of_gaussian = reweight(log_probs, advantages, mask)  # what is extreme does not depend on the kernel
    assert statistics.extreme_gradient_share == of_gaussian.extreme_gradient_share
    by_name, _ = reweight(log_probs, advantages, mask, kernel="cw_plugin.weights:gaussian")
    assert torch.equal(by_name, reweight(log_probs, advantages, mask)[0])


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda z: z[:-1], r"returned shape \(.*; return one weight for each"),
        (lambda z: 1.0, "returned a float"),
        (lambda z: z, r"returned -\S+ at z=-\S+; weights must be finite and not negative"),
        (lambda z: z / 0, "weights must be finite"),
        (lambda z: 0 * z, "returned 0 for all"),
        ("laplace", "'laplace' is invalid; use one of gaussian, none, or module:function"),
        ("no_such_module:wide", "cannot be imported .*no_such_module.*PYTHONPATH"),
        ("math:no_such_function", "cannot be imported"),
        ("math:pi", "is a float; name a function"),
    ],
)
def test_a_kernel_that_cannot_be_one_is_refused(kernel, message):
    log_probs, advantages, mask, group = random_batch(14)
    with pytest.raises(OptionsError, match=message):
        reweight(log_probs, advantages, mask, group, kernel)


@pytest.mark.parametrize("huge", [-1e19, -3e38])
def test_huge_log_probs_are_weighed_not_left_at_weight_one(huge):
    log_probs, advantages, mask, group = random_batch(15)
    log_probs[mask.nonzero()[7].tolist()[0], mask.nonzero()[7].tolist()[1]] = huge
    reweighted, statistics = reweight(log_probs, advantages, mask, group)
    expected, _ = loop(log_probs, advantages, mask, group)
    torch.testing.assert_close(reweighted.double(), expected, rtol=1e-6, atol=1e-6)
    assert statistics.signal_share == 1


@pytest.mark.parametrize("name", ["log_probs", "advantages"])
def test_values_whose_weighted_advantage_is_not_finite_are_refused_by_group(name):
    log_probs, advantages, mask, group = random_batch(16)
    mine = group == 3
    if name == "log_probs":
        log_probs[mine] = log_probs[mine] + 3e38  # no probability, and its gradient is infinite
    else:
        advantages[mine] = advantages[mine].sign() * 3.4e38
    with pytest.raises(NonFiniteError, match="weighted advantages: NaN or infinite") as raised:
        reweight(log_probs, advantages, mask, group)
    assert raised.value.rows == (mine & mask.any(1)).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    "arguments",
    [
        {"response_mask": torch.ones(2, 4)},
        {"advantages": torch.ones(3)},
        {"advantages": torch.ones(3, 2)},
        {"log_probs": torch.zeros(6)},
        {"group": torch.tensor([0])},
    ],
)
def test_shapes_that_do_not_fit_are_refused(arguments, unchecked):
    fits = {"log_probs": torch.zeros(2, 3), "advantages": torch.ones(2), "response_mask": torch.ones(2, 3)}
    name = next(iter(arguments))
    with pytest.raises(ValueError, match=f"{name} .*do not fit"):
        reweight(**{**fits, **arguments})


@pytest.mark.parametrize("kernel", ["none", "gaussian"])
def test_entropy_changes_by_minus_eta_times_the_covariance(kernel):
    """A tabular softmax policy with exact natural gradient, whose step adds eta A to the logits (section 2.2).

    Actions stand in the batch as often as they are probable, so that the batch's covariance is the policy's.
    """
    counts = torch.tensor([400, 250, 150, 100, 60, 30, 9, 1])
    policy = counts.double() / counts.sum()
    advantage = torch.tensor([0.3, -1.1, 0.8, 1.5, -0.4, 2.5, -2.0, 3.0], dtype=torch.float64)
    action = torch.repeat_interleave(torch.arange(len(counts)), counts)
    x, a = policy.log()[action][None], advantage[action][None]
    reweighted, statistics = reweight(x, a, torch.ones_like(x, dtype=torch.long), kernel=kernel)
    weighted = torch.zeros_like(advantage).index_copy_(0, action, reweighted[0])  # one for each action
    covariance = statistics.covariance_before if kernel == "none" else statistics.covariance_after
    assert abs(covariance) > 0.05

    def entropy(p: torch.Tensor) -> float:
        return -(p * p.log()).sum().item()

    error = []
    for eta in (1e-2, 1e-3, 1e-4):
        change = entropy(torch.softmax(policy.log() + eta * weighted, 0)) - entropy(policy)
        error.append(abs(change + eta * covariance) / (eta * abs(covariance)))
    assert error[-1] < 1e-3  # first order: what is left falls with eta
    assert error[0] / error[1] == pytest.approx(10, rel=0.1) and error[1] / error[2] == pytest.approx(10, rel=0.1)
