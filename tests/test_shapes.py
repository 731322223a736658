"""That conftest.py has the shapes in signatures checked: a wrong one raises wherever shapes are annotated."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from cw_plugin.verl_integration.estimator import compute_cw_grpo_advantage
from cw_plugin.verl_integration.loss import compute_policy_loss_cw_grpo
from cw_plugin.weights import reweight

SHAPE, WIDER, ROWS = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2)


@pytest.mark.parametrize(
    ("function", "arguments", "wrong"),
    [
        (reweight, (SHAPE, WIDER, SHAPE), "advantages"),
        (reweight, (SHAPE.int(), ROWS, SHAPE), "log_probs"),
        (compute_cw_grpo_advantage, (SHAPE, WIDER.int(), None), "response_mask"),
        (compute_policy_loss_cw_grpo, (SHAPE, SHAPE, ROWS, SHAPE.bool()), "advantages"),
    ],
)
def test_a_wrong_shape_raises(function, arguments, wrong):
    with pytest.raises(TypeCheckError, match=f"parameter '{wrong}'"):
        function(*arguments)
