"""Our weights are those of golden.json, which the loops have written."""

import json
from pathlib import Path

import pytest
import torch
from reference_weightings import WEIGHTINGS

from cw_plugin.registry import load
from cw_plugin.reweight import reweight

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text("utf-8"))
WIDTH = 9


def of_batch(key):
    """The rows of both groups, padded."""
    rows = [row + [0] * (WIDTH - len(row)) for group in GOLDEN["groups"] for row in group[key]]
    return torch.tensor(rows, dtype=torch.float64)


def test_every_weighting_with_a_loop_is_there():
    assert set(GOLDEN["weightings"]) == set(WEIGHTINGS)


@pytest.mark.parametrize("name", GOLDEN["weightings"])
def test_our_weights_are_the_golden_ones(name):
    golden = GOLDEN["weightings"][name]
    advantages = torch.tensor([a for group in GOLDEN["groups"] for a in group["advantages"]], dtype=torch.float64)
    numbers = torch.tensor([number for number, group in enumerate(GOLDEN["groups"]) for _ in group["advantages"]])
    tokens = of_batch("log_probs"), advantages, of_batch("response_mask"), numbers
    weighted, _ = reweight(*tokens, load(name, golden["settings"]), of_batch("entropies"))
    expected = [row + [0] * (WIDTH - len(row)) for group in golden["weights"] for row in group]
    torch.testing.assert_close(
        weighted / advantages[:, None], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )
