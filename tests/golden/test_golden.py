"""Our weights are those of golden.json, which the loops have written. The hosts' tests have them, too."""

import pytest
import torch
from golden import ADVANTAGES, GOLDEN, UIDS, of_tokens, weighted
from reference_weightings import WEIGHTINGS

from cw_plugin.batch import group_numbers
from cw_plugin.registry import load
from cw_plugin.reweight import reweight


def test_every_weighting_with_a_loop_is_there():
    assert set(GOLDEN["weightings"]) == set(WEIGHTINGS)


@pytest.mark.parametrize("name", GOLDEN["weightings"])
def test_our_weights_are_the_golden_ones(name):
    weighting = load(name, GOLDEN["weightings"][name]["settings"])
    tokens = of_tokens("log_probs"), ADVANTAGES, of_tokens("response_mask"), group_numbers(UIDS)
    found, _ = reweight(*tokens, weighting, of_tokens("entropies"))
    torch.testing.assert_close(found, weighted(name), rtol=1e-9, atol=1e-9)
