"""What cannot be reweighted: values, weightings and shapes."""

import math

import jaxtyping
import pytest
import torch
from random_batches import random_batch

from cw_plugin.errors import NonFiniteError, OptionsError
from cw_plugin.registry import weighting
from cw_plugin.reweight import reweight, reweight_micro_batch


@pytest.mark.parametrize("function", [reweight, reweight_micro_batch])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("what", ["log_probs", "advantages"])
@pytest.mark.parametrize("of_tokens", [False, True])
def test_non_finite_values_are_named_by_row_unless_masked(what, bad, function, of_tokens):
    log_probs, advantages, mask, _ = random_batch(9)
    if of_tokens:
        advantages = torch.randn(mask.shape, generator=torch.Generator().manual_seed(3))
    mask[4], mask[5, 0], mask[17, 0] = False, True, True
    expected, _ = function(log_probs, advantages, mask)
    log_probs[~mask], advantages[4] = bad, bad
    assert torch.equal(function(log_probs, advantages, mask)[0], expected)
    if what == "log_probs":
        log_probs[[5, 17], 0] = bad
    else:
        advantages[[5, 17]] = bad
    with pytest.raises(NonFiniteError, match=rf"{what}.* 2 row\(s\): 5, 17\.") as raised:
        function(log_probs, advantages, mask)
    assert raised.value.rows == [5, 17]


def test_weighted_advantages_that_are_not_finite_are_refused_by_group():
    log_probs, advantages, mask, group = random_batch(16)
    mine = group == 3
    advantages[mine] = advantages[mine].sign() * 3.4e38
    with pytest.raises(NonFiniteError, match=r"weighted advantages: .* or weights are too large; .*") as raised:
        reweight(log_probs, advantages, mask, group)
    assert raised.value.rows == (mine & mask.any(1)).nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda group: group.z[:-1], r"returned shape \(.*; return one weight for each"),
        (lambda group: group.z.repeat(2), r"returned shape \(.*; return one weight for each"),
        (lambda group: 1.0, "returned a float"),
        (lambda group: group.z.numpy(), "returned a ndarray"),
        (lambda group: group.z, r"returned -\S+ at log_prob=-\S+, advantage=\S+ and z=-\S+; weights must be"),
        (lambda group: group.z / 0, "returned -inf at .*; weights must be finite"),
        (lambda group: 0 * group.z, "returned 0 for all"),
        (lambda group: group.entropies, "the weighting reads entropies .* needs_entropies=True"),
    ],
)
def test_weights_that_cannot_be_some_are_refused(function, message):
    with pytest.raises(OptionsError, match=rf"weights='{__name__}:<lambda>'( |: ){message}"):
        reweight(*random_batch(14), weighting(scaled=True)(function))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("laplace", "weights='laplace' is invalid; use one of gaussian, none, ar, .*, or module:function"),
        (".weightings:wide", "'.weightings:wide' is invalid; use one of gaussian, none"),
        ("no_such_module:wide", "cannot be imported .*no_such_module.*PYTHONPATH"),
        ("json:lod", "json/__init__.py has no function lod; name one that it has$"),
        ("math:exp", r"weights='math:exp' is a builtin_function_or_method; put @weighting\(scaled=True\) before"),
        ("state", "weights='state' needs the entropy of each position, and got none"),
    ],
)
def test_a_name_of_no_weighting_is_refused(name, message):
    with pytest.raises(OptionsError, match=message):
        reweight(*random_batch(14), name)


def test_shapes_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which checks them here, but not for a user
    fits = {"log_probs": torch.zeros(2, 3), "advantages": torch.ones(2), "response_mask": torch.ones(2, 3)}
    wrong = [("response_mask", (2, 4)), ("advantages", 3), ("advantages", (3, 2)), ("log_probs", 6), ("group", 1)]
    wrong.append(("entropies", (2, 4)))
    for name, shape in wrong:
        with pytest.raises(ValueError, match=f"{name} .*do not fit"):
            reweight(**fits | {name: torch.ones(shape)}, weights="state" if name == "entropies" else "gaussian")
