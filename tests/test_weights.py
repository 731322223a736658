"""The mathematics against a float64 loop, and the properties that sharding and batching rely on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import reference_weights

from cw_plugin.errors import NonFiniteError, OptionsError
from cw_plugin.weights import covariance_weights


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
    weights, groups = reference_weights(log_probs.tolist(), advantages.tolist(), mask.tolist(), group.tolist())
    return torch.tensor(weights, dtype=torch.float64), groups


def well_conditioned(groups) -> bool:
    """float32 cannot resolve a group whose covariances nearly coincide; the rule at 10 sigma is tested on its own."""
    return all(not 2 < abs(g["mean_c"]) / g["sigma"] < 20 for g in groups.values() if g["sigma"])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
def test_matches_float64_loop(seed, mask_dtype):
    log_probs, advantages, mask, group = random_batch(seed)
    expected, groups = loop(log_probs, advantages, mask, group)
    weights, stats = covariance_weights(log_probs, advantages[:, None], mask.to(mask_dtype), group)
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-5)

    tokens = sum(g["n"] for g in groups.values())
    expected_stats = {
        "sigma": sum(g["sigma"] for g in groups.values()) / len(groups),
        "signal_share": 1.0,
        "weight_mean": sum(g["sum_w"] for g in groups.values()) / tokens,
        "weight_min": min(g["min_w"] for g in groups.values()),
        "effective_sample_share": sum(g["sum_w"] ** 2 / g["sum_w2"] for g in groups.values()) / tokens,
        "downweighted_share": sum(g["low"] for g in groups.values()) / tokens,
        "covariance_before": sum(g["mean_c"] * g["n"] for g in groups.values()) / tokens,
        "covariance_after": sum(g["cov_after"] * g["n"] for g in groups.values()) / tokens,
        "covariance_max": max(g["max_c"] for g in groups.values()),
        "covariance_min": min(g["min_c"] for g in groups.values()),
    }
    measured = {name: getattr(stats, name).item() for name in expected_stats}
    assert measured == pytest.approx(expected_stats, rel=1e-4, abs=1e-6)


@st.composite
def batches(draw):
    rows = draw(st.integers(1, 8))
    width = draw(st.integers(1, 12))
    log_prob = st.floats(-30, 0, width=32)
    return (
        torch.tensor(draw(st.lists(st.lists(log_prob, min_size=width, max_size=width), min_size=rows, max_size=rows))),
        torch.tensor(draw(st.lists(st.floats(-4, 4, width=32), min_size=rows, max_size=rows))),
        torch.tensor(
            draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows))
        ),
        torch.tensor(draw(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows))),
    )


@settings(max_examples=400, deadline=None)
@given(batches())
def test_any_batch_is_finite_averages_one_and_matches_the_loop(batch):
    log_probs, advantages, mask, group = batch
    weights, stats = covariance_weights(log_probs, advantages[:, None], mask, group)
    assert torch.isfinite(weights).all() and (weights >= 0).all()
    assert all(torch.isfinite(value) for value in vars(stats).values())
    assert (weights[~mask] == 0).all()
    for g in group.unique():
        in_group = mask & (group == g)[:, None]
        if in_group.any():
            assert weights[in_group].double().mean().item() == pytest.approx(1, abs=1e-4)
    expected, groups = loop(log_probs, advantages, mask, group)
    spread = max((log_probs.max() - log_probs.min()).item(), 1e-30) * max(
        (advantages.max() - advantages.min()).item(), 1e-30
    )
    assume(
        well_conditioned(groups) and all(g["sigma"] > 1e-4 * max(1, spread) or g["sigma"] == 0 for g in groups.values())
    )
    torch.testing.assert_close(weights.double(), expected, rtol=1e-3, atol=1e-3)


def test_token_level_advantages_equal_a_column_that_is_repeated():
    log_probs, advantages, mask, group = random_batch(1)
    column, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    full, _ = covariance_weights(log_probs, advantages[:, None].expand_as(log_probs).contiguous(), mask, group)
    torch.testing.assert_close(column, full, rtol=1e-5, atol=1e-6)


def test_scale_and_shift_of_log_probs_and_advantages_do_not_matter():
    """c and sigma scale alike: the method has no hyperparameter, down to the units."""
    log_probs, advantages, mask, group = random_batch(1)
    weights, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    changed, _ = covariance_weights(3 * log_probs - 1, 1e-6 * advantages[:, None] + 1e-7, mask, group)
    torch.testing.assert_close(changed, weights, rtol=1e-4, atol=1e-4)


def test_rows_in_any_order_give_the_same_weights():
    log_probs, advantages, mask, group = random_batch(2, groups=16, responses=8, width=300)
    weights, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    order = torch.randperm(len(group), generator=torch.Generator().manual_seed(0))
    shuffled, _ = covariance_weights(log_probs[order], advantages[order, None], mask[order], group[order])
    torch.testing.assert_close(shuffled, weights[order], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("extra", [1, 7, 1000])
def test_padding_width_changes_nothing(extra):
    log_probs, advantages, mask, group = random_batch(3)
    weights, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    rubbish = torch.full((len(group), extra), -7.0)
    padded, _ = covariance_weights(
        torch.cat([log_probs, rubbish], 1),
        advantages[:, None],
        torch.cat([mask, torch.zeros(len(group), extra, dtype=torch.bool)], 1),
        group,
    )
    torch.testing.assert_close(padded[:, : weights.shape[1]], weights, rtol=1e-6, atol=1e-7)
    assert (padded[:, weights.shape[1] :] == 0).all()


def test_a_group_does_not_depend_on_the_others():
    log_probs, advantages, mask, group = random_batch(4)
    weights, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    mine = group == 2
    log_probs[~mine] = -log_probs[~mine].square()
    advantages[~mine] = advantages[~mine].exp()
    changed, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    assert torch.equal(changed[mine], weights[mine])
    assert not torch.allclose(changed[~mine], weights[~mine])


def test_scope_batch_is_one_group():
    log_probs, advantages, mask, _ = random_batch(5)
    weights, _ = covariance_weights(log_probs, advantages[:, None], mask, group=None)
    expected, _ = loop(log_probs, advantages, mask, torch.zeros(len(mask)))
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-5)


def test_blocks_do_not_show(monkeypatch):
    log_probs, advantages, mask, group = random_batch(6)
    weights, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    monkeypatch.setattr("cw_plugin.weights._BLOCK_ELEMENTS", {"cpu": 1})
    one_row_at_a_time, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    torch.testing.assert_close(one_row_at_a_time, weights, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_float32(dtype):
    """4096 tokens a row: sums in half precision would lose most of them."""
    log_probs, advantages, mask, group = random_batch(7, groups=2, responses=4, width=4096)
    half = log_probs.to(dtype)
    weights, _ = covariance_weights(half, advantages[:, None], mask, group)
    expected, _ = loop(half.float(), advantages, mask, group)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("log_probs", "advantages", "mask"),
    [
        pytest.param([[-0.1, -2.0], [-0.7, -0.3]], [0.0, 0.0], [[1, 1], [1, 1]], id="equal rewards"),
        pytest.param([[-0.1, -2.0], [-0.7, -0.3]], [0.1, 0.1], [[1, 1], [1, 1]], id="equal advantages that are not 0"),
        pytest.param([[-0.1, -2.0, -0.4]], [0.7], [[1, 1, 1]], id="one response"),
        pytest.param([[-0.1, -2.0]], [0.7], [[0, 1]], id="one token"),
        pytest.param([[-0.3, -0.3], [-0.3, -0.3]], [1.0, -1.0], [[1, 1], [1, 1]], id="equal log-probs"),
        pytest.param([[-0.1], [-2.0]], [1.0, -1.0], [[1], [1]], id="two tokens: one covariance, not 0"),
        pytest.param([[-0.123], [-2.7]], [0.3, -0.9], [[1], [1]], id="two tokens, rounded differently"),
    ],
)
def test_no_spread_of_covariance_means_weight_one(log_probs, advantages, mask):
    mask = torch.tensor(mask)
    weights, stats = covariance_weights(
        torch.tensor(log_probs), torch.tensor(advantages)[:, None], mask, torch.zeros(len(mask), dtype=torch.long)
    )
    assert torch.equal(weights, mask.float())
    assert stats.signal_share == 0 and stats.sigma == 0 and stats.weight_mean == 1 and stats.downweighted_share == 0


def test_covariances_alike_by_ten_sigma_mean_weight_one_and_otherwise_not():
    """x in {m - 1, m + 1 + d} against A in {-1, 1}: c is near 1 for every token, with a spread that d sets."""
    for d, uniform in ((0.05, True), (1.0, False)):
        log_probs = torch.tensor([[-3.0, -3.0 - d], [-1.0, -1.0 - d]])
        weights, stats = covariance_weights(log_probs, torch.tensor([[-1.0], [1.0]]), torch.ones(2, 2))
        assert (stats.signal_share == 0) == uniform
        assert torch.equal(weights, torch.ones(2, 2)) == uniform


def test_empty_responses_and_padding_rows_have_weight_zero():
    log_probs, advantages, mask, group = random_batch(8)
    weights, stats = covariance_weights(log_probs, advantages[:, None], mask, group)
    width = mask.shape[1]
    more = 3  # an empty response of group 0, and two padding rows that are groups of their own
    padded, padded_stats = covariance_weights(
        torch.cat([log_probs, torch.zeros(more, width)]),
        torch.cat([advantages, torch.ones(more)])[:, None],
        torch.cat([mask, torch.zeros(more, width, dtype=torch.bool)]),
        torch.cat([group, torch.tensor([0, 10, 11])]),
    )
    torch.testing.assert_close(padded[:-more], weights)
    assert (padded[-more:] == 0).all()
    for name, value in vars(stats).items():
        torch.testing.assert_close(getattr(padded_stats, name), value)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_batch(shape):
    weights, stats = covariance_weights(torch.zeros(shape), torch.zeros(shape[0], 1), torch.ones(shape))
    assert weights.shape == shape
    assert all(torch.isfinite(value) for value in vars(stats).values())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_log_probs_are_named_by_row_when_valid_and_ignored_when_masked(bad):
    log_probs, advantages, mask, group = random_batch(9)
    expected, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    log_probs[~mask] = bad
    weights, _ = covariance_weights(log_probs, advantages[:, None], mask, group)
    torch.testing.assert_close(weights, expected)
    for row in (3, 17):
        log_probs[row, mask[row].nonzero()[0]] = bad
    with pytest.raises(NonFiniteError, match=r"log_probs .* 2 row\(s\): 3, 17\.") as raised:
        covariance_weights(log_probs, advantages[:, None], mask, group)
    assert raised.value.rows == [3, 17]


def test_non_finite_advantages_are_named_unless_the_row_is_empty():
    log_probs, advantages, mask, group = random_batch(10)
    mask[4] = False
    advantages[4] = math.nan
    assert torch.isfinite(covariance_weights(log_probs, advantages[:, None], mask, group)[0]).all()
    advantages[5] = math.inf
    mask[5, 0] = True
    with pytest.raises(NonFiniteError, match=r"advantages .*: 5\."):
        covariance_weights(log_probs, advantages[:, None], mask, group)


def test_no_gradient_flows_through_the_weights():
    log_probs, advantages, mask, group = random_batch(11)
    weights, _ = covariance_weights(log_probs.requires_grad_(), advantages[:, None], mask, group)
    assert not weights.requires_grad


def test_kernel_none_is_weight_one_with_the_statistics_of_plain_grpo():
    log_probs, advantages, mask, group = random_batch(12)
    weights, stats = covariance_weights(log_probs, advantages[:, None], mask, group, kernel="none")
    _, weighted = covariance_weights(log_probs, advantages[:, None], mask, group)
    assert torch.equal(weights, mask.float())
    assert stats.sigma == weighted.sigma and stats.covariance_max == weighted.covariance_max
    assert stats.weight_min == stats.weight_mean == 1 and stats.effective_sample_share == pytest.approx(1)
    torch.testing.assert_close(stats.covariance_after, stats.covariance_before, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(kernel="laplace"), OptionsError, "use one of gaussian, none"),
        (dict(response_mask=torch.ones(2, 4)), ValueError, "response_mask"),
        (dict(advantages=torch.ones(2, 2)), ValueError, "advantages"),
        (dict(group=torch.tensor([0, 2])), ValueError, "below 2"),
        (dict(group=torch.tensor([0])), ValueError, "below 2"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, error, message):
    fits = dict(log_probs=torch.zeros(2, 3), advantages=torch.ones(2, 1), response_mask=torch.ones(2, 3))
    with pytest.raises(error, match=message):
        covariance_weights(**{**fits, **arguments})
