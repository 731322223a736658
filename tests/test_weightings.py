"""The weightings from the literature, against the float64 loops of tests/tools/reference_weightings.py."""

import itertools
import re
from pathlib import Path

import pytest
import torch
from random_batches import random_batch, random_entropies
from reference_weightings import WEIGHTINGS, covariances, reference_weighted, reference_weights

from cw_plugin import weightings
from cw_plugin.errors import NonFiniteError
from cw_plugin.options import Options
from cw_plugin.registry import BUILT_IN, load, weighting
from cw_plugin.reweight import reweight

DRAWN = {"clip_cov"}  # tokens are chosen at random


PAGE = Path(weightings.__file__).with_name("README.md").read_text("utf-8")


def groups_of(mask, group):
    """The places (row, position) of each group's tokens."""
    for number in group.unique().tolist():
        places = (mask & (group == number)[:, None]).nonzero(as_tuple=True)
        if len(places[0]):
            yield places


def test_every_weighting_has_a_loop():
    assert set(BUILT_IN) == set(WEIGHTINGS) | DRAWN


def test_every_weighting_has_its_row_on_the_page_which_says_if_it_needs_entropies():
    rows = [line.split("|")[1] for line in PAGE.splitlines() if "](" in line and line.startswith("|")]
    for name in BUILT_IN:
        (row,) = [row for row in rows if f"[`{name}`]" in row]
        assert ("(entropies)" in row) == load(name).needs_entropies
        (settings,) = [line.split("|")[3] for line in PAGE.splitlines() if line.split("|")[1:2] == [row]]
        for setting, of in load(name).settings.items():
            assert f"`{setting}` {of.default:g} ({of.low:g} to {of.high:g})" in settings


def test_the_example_of_the_page_passes_its_test(tmp_path, monkeypatch):
    example, test, with_setting = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "mine.py").write_text(example)
    (tmp_path / "mine_too.py").write_text(with_setting)
    monkeypatch.syspath_prepend(str(tmp_path))
    defined: dict = {}
    exec(test, defined)
    defined["test_certain_tokens_lose_their_weight"]()
    assert Options(weights="mine:focal").weights == "mine:focal"
    assert Options(weights="mine_too:focal", settings={"power": 3}).settings == {"power": 3}


OTHER_SETTINGS = {
    "ar": {"alpha": 0.3},
    "stare": {"share": 0.3, "weight": 1.05},
    "stare_gated": {"weight": 1.05, "target_entropy": 0.5},
    "drop_top_cov": {"share": 0.2},
    "positive_weight": {"weight": 0.5},
    "high_entropy": {"share": 0.5},
    "steer": {"low": 0.5, "high": 2},
    "steer_exp": {"low": 0.3, "floor": 50},
    "entropy_advantage": {"alpha": 1, "kappa": 5},
    "repo_r": {"zeta": -0.5},
    "aepo": {"scale": 1},
    "gtpo_simplified": {"beta": 2},
    "empg": {"k": 3},
}
CASES = [
    *itertools.product(WEIGHTINGS, [{}], [torch.float32, torch.float64], ["group", "batch"]),
    *((name, given, torch.float64, "group") for name, given in OTHER_SETTINGS.items()),
]
# The smallest and the largest weight by default, if there is one: without both, the next test would say less than it
# seems to.
BOTH_SIDES = {
    "stare": (1, 1.1), "stare_gated": (1, 1.1), "drop_top_cov": (0, 1), "positive_weight": (0.1, 1),
    "high_entropy": (0, 5), "steer": (0.8, 1.2), "steer_exp": (0.8, 1), "entropy_advantage": (0.5, 1.5),
}  # fmt: skip


@pytest.mark.parametrize(("name", "given", "dtype", "scope"), CASES)
def test_weights_are_those_of_the_loop(name, given, dtype, scope):
    """Rows in any order, rubbish off the mask, an empty response, advantages of 0, tokens that are certain or nearly
    impossible, and a group of equal rewards."""
    reached, by_default = [], []
    for seed in range(5):
        log_probs, advantages, mask, group = random_batch(seed, groups=3 + seed, scale=3.0)
        entropies = random_entropies(seed, mask.shape, scale=0.1 + 0.2 * seed)  # on both sides of STARE's gate
        entropies[group == group[0]] *= 4  # STARE's gate asks the batch
        log_probs, advantages, entropies = (v.to(dtype) for v in (log_probs, advantages, entropies))
        advantages[3], mask[7], log_probs[5, 0] = 0, False, 0
        log_probs[6, 0], mask[6, 0] = -60, True
        advantages[group == group[1]] = 0
        log_probs[~mask], entropies[~mask] = torch.nan, torch.nan
        tokens = log_probs, advantages, mask, group if scope == "group" else torch.zeros_like(group)
        reweighted, statistics = reweight(*tokens, load(name, given), entropies)
        expected = reference_weights(name, *tokens, entropies, **given)
        rtol, atol = (1e-5, 1e-6) if dtype == torch.float32 else (1e-9, 1e-12)
        torch.testing.assert_close(reweighted.double(), expected * advantages[:, None], rtol=rtol, atol=atol)
        reached += expected[mask].tolist()
        by_default += reference_weights(name, *tokens, entropies)[mask].tolist()
        if not load(name).scaled:
            assert statistics.weight_min == pytest.approx(expected[mask].min().item(), rel=1e-6)
            assert statistics.weight_mean == pytest.approx(expected[mask].mean().item(), rel=1e-6)
    assert (reached != by_default) == bool(given)
    if name in BOTH_SIDES and not given:
        assert (min(reached), max(reached)) == pytest.approx(BOTH_SIDES[name], rel=0.01)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_one_token_and_tokens_that_are_all_alike_have_the_weights_of_the_loop(name):
    """Where every deviation, range and covariance is 0."""
    group = torch.tensor([0, 1, 1, 1])
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 0, 0]]).bool()
    log_probs, entropies = torch.full(mask.shape, -0.7).double(), torch.full(mask.shape, 0.2).double()
    if name == "high_entropy":  # which keeps any of tokens that are all alike
        entropies += torch.arange(12).view(mask.shape)
    advantages = torch.tensor([1.0, 1.5, -0.5, -1.0]).double()
    with_gradient = entropies.clone().requires_grad_()  # as log-probs may be, too
    reweighted, _ = reweight(log_probs, advantages, mask, group, name, with_gradient)
    expected = reference_weighted(name, log_probs, advantages, mask, group, entropies)
    torch.testing.assert_close(reweighted, expected, rtol=1e-6, atol=1e-9)


def test_responses_that_are_equally_certain_have_the_same_weight_in_eda():
    ones = torch.ones(3, 2)
    for entropy in (1e-3, 1e-7, 0):  # the last two are below the floor
        reweighted, _ = reweight(-ones, torch.tensor([1.0, 2.0, 3.0]), ones, None, "eda", entropy * ones)
        torch.testing.assert_close(reweighted, torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "none"])
def test_a_weighting_declares_if_one_response_is_as_good_as_no_weights(name):
    """drop_top_cov drops any token then, since every covariance is 0."""
    log_probs, _, mask, _ = random_batch(1, groups=1, responses=40, scale=3.0)
    entropies = random_entropies(1, mask.shape, scale=0.1)
    signs = torch.arange(len(mask)) % 2 * 2.0 - 1
    reweighted, _ = reweight(log_probs, signs, mask, torch.arange(len(mask)), name, entropies)
    all_are_1 = torch.allclose(reweighted, signs[:, None] * mask, atol=1e-6)
    assert load(name).needs_several_responses == (all_are_1 or name == "drop_top_cov")


def test_every_setting_has_another_value_here():
    of_all = {name: set(load(name).settings) for name in WEIGHTINGS if load(name).settings}
    of_all["stare_gated"].remove("share")  # as stare's
    assert {name: set(given) for name, given in OTHER_SETTINGS.items()} == of_all


@pytest.mark.parametrize(
    ("groups", "responses", "width", "given", "count"),
    [
        (7, 8, 40, {}, 1),  # one of a small group
        (1, 64, 1000, {}, 5),  # 0.0002 of a large one
        (1, 64, 100, {"share": 0.01, "lower": 0.5, "upper": 0.8}, 28),
    ],
)
def test_clip_cov_drops_a_few_of_the_tokens_between_its_bounds(groups, responses, width, given, count):
    """And none where no covariance lies between the bounds."""
    log_probs, advantages, mask, group = random_batch(1, groups, responses, width, scale=0.4)
    weights, lower, upper = load("clip_cov", given), given.get("lower", 1), given.get("upper", 5)
    for step in (1, 2):
        reweighted, _ = reweight(log_probs, advantages, mask, group, weights, step=step)
        dropped = mask & (reweighted == 0)
        assert torch.equal(reweighted[mask & ~dropped], advantages[:, None].expand_as(mask)[mask & ~dropped])
        for places in groups_of(mask, group):
            c = torch.tensor(covariances(log_probs[places].tolist(), advantages[places[0]].tolist()))
            between = (c > lower) & (c < upper)
            assert count == 1 or between.sum() >= count  # in the small case, some groups have none
            assert dropped[places].sum() == min(count, between.sum()) and between[dropped[places]].all()


def test_80_20_keeps_as_many_as_its_authors_and_divides_by_them():
    """Their tokens where entropies are tied are arbitrary, but not how many."""
    mask, advantages = torch.ones(2, 10), torch.tensor([1.0, -1.0])
    entropies = torch.zeros(2, 10)
    entropies[0, 7] = entropies[1, 2] = 1.0
    reweighted, _ = reweight(-mask, advantages, mask, weights="high_entropy", entropies=entropies)
    weights = reweighted * advantages[:, None]
    assert sorted(weights.flatten().tolist()) == [0.0] * 16 + [5.0] * 4  # 20 / 4
    assert weights[0, 7] == weights[1, 2] == 5
    one = load("high_entropy", {"share": 0})  # at least
    assert reweight(-mask, advantages, mask, weights=one, entropies=entropies)[0].count_nonzero() == 1


def moved(values, order, columns, width, padding):
    padded = torch.full((len(values), width), padding, dtype=values.dtype)
    padded[:, columns] = values[order]
    return padded


@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_group_has_its_weights_wherever_its_rows_are(name, scope):
    """Bit for bit: with rows in another order, with padding, without other groups; and where values are tied.

    Rows without tokens hold any values, and change nothing.
    """
    for seed in range(6):
        log_probs, advantages, mask, group = random_batch(seed, scale=3.0)
        entropies = random_entropies(seed, mask.shape, scale=0.3)
        if seed % 2:  # ties, also between rows
            log_probs, entropies, advantages = log_probs.round(), entropies.round(), advantages.sign()
        mask[seed::7] = False
        together = group if scope == "group" else torch.zeros_like(group)
        once, statistics = reweight(log_probs, advantages, mask, together, name, entropies, step=3)
        g = torch.Generator().manual_seed(seed)
        order, numbers = torch.randperm(len(group), generator=g), torch.randperm(100, generator=g)
        left, right = torch.randint(1, 9, (2,), generator=g).tolist()
        columns, width = torch.arange(left, left + mask.shape[1]), left + mask.shape[1] + right
        again, of_again = reweight(
            moved(log_probs, order, columns, width, torch.nan),
            advantages.masked_fill(~mask.any(1), torch.nan)[order],
            moved(mask, order, columns, width, False),
            numbers[together][order],
            name,
            moved(entropies, order, columns, width, torch.nan),
            step=3,
        )
        assert torch.equal(again, moved(once, order, columns, width, 0)), seed
        assert vars(of_again) == pytest.approx(vars(statistics), rel=1e-6)
        if scope == "batch" or load(name).needs_batch_entropy:
            continue
        for number in group[mask.any(1)].unique():
            rows = (group == number) & mask.any(1)
            alone, _ = reweight(log_probs[rows], advantages[rows], mask[rows], None, name, entropies[rows], step=3)
            assert torch.equal(alone, once[rows]), (seed, number)


def test_what_is_drawn_changes_with_the_step_and_hardly_with_rounding():
    log_probs, advantages, mask, group = random_batch(2, groups=6, responses=8, width=60, scale=0.6)

    def dropped(step, noise=0.0):
        reweighted, _ = reweight(log_probs + noise, advantages, mask, group, "clip_cov", step=step)
        return mask & (reweighted == 0)

    torch.manual_seed(7)
    state = torch.get_rng_state()
    once = dropped(3)
    assert torch.equal(torch.get_rng_state(), state)  # a host's own draws stay
    assert torch.equal(dropped(3), once) and not torch.equal(dropped(4), once)
    assert torch.equal(dropped(3, noise=1e-6 * torch.randn(log_probs.shape)), once)
    times = sum(dropped(step).int() for step in range(100))
    for places in groups_of(mask, group):
        c = torch.tensor(covariances(log_probs[places].tolist(), advantages[places[0]].tolist()))
        assert torch.equal(times[places] > 0, (c > 1) & (c < 5))  # each candidate is drawn sometimes


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_entropies_that_are_not_finite_are_named_by_row(bad):
    log_probs, advantages, mask, group = random_batch(3)
    entropies = random_entropies(3, mask.shape)
    mask[4, 0] = mask[9, 1] = True
    entropies[4, 0] = entropies[9, 1] = bad
    own = weighting(scaled=False, needs_batch_entropy=True)(lambda group: group.entropies / group.batch_entropy)
    for weights in (own, *(name for name in BUILT_IN if load(name).needs_entropies)):
        with pytest.raises(NonFiniteError, match=r"entropies: .* 2 row\(s\): 4, 9\. .* logits") as raised:
            reweight(log_probs, advantages, mask, group, weights, entropies)
        assert raised.value.rows == [4, 9]
    reweight(log_probs, advantages, mask, group, "ar", entropies)  # which asks for none


def test_a_weighting_knows_row_and_place_of_its_tokens():
    """The place is counted from the first valid token; the worst response is row 0, and of equal ones, the shortest."""
    mask = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    advantages = torch.tensor([1.0, 1.0, -1.0])
    own = weighting(scaled=False)(lambda group: 1.0 + group.position + 100 * group.row)
    reweighted, _ = reweight(-torch.rand(3, 5), advantages, mask, weights=own)
    expected = torch.tensor([[0, 201, 0, 203, 204], [101, 102, 0, 0, 0], [0, 0, -1, -2, -3]])
    assert torch.equal(reweighted, expected.float())


def test_weights_of_0_for_a_whole_group_are_allowed_unless_they_are_scaled():
    """As those of negative samples alone are, where all are positive. test_refused_batches.py has the others."""
    negative = weighting(scaled=False)(lambda group: (group.advantages < 0).float())
    log_probs, advantages, mask, group = random_batch(6)
    reweighted, statistics = reweight(log_probs, advantages.abs(), mask, group, negative)
    assert not reweighted.any() and statistics.weight_mean == statistics.effective_sample_share == 0
