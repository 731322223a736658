"""The loss in verl's registry, against verl's vanilla loss.

test_verl_releases.py runs this file on earlier releases, the nightly workflow on verl's main.
"""

import pytest

pytest.importorskip("verl")

import torch
from pretend_device import Pretend, back, on_device
from reference import reference_advantages
from trainers import actor_config, loss_arguments
from verl.trainer.ppo import core_algos

from cw_plugin.errors import NonFiniteError


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("loss_agg_mode", ["token-mean", "seq-mean-token-sum-norm"])
def test_loss_is_vanilla_on_reweighted_advantages(loss_agg_mode, corrected):
    """The micro-batch is one group, whose advantages differ within a response."""
    arguments = loss_arguments()
    more = {"loss_agg_mode": loss_agg_mode, "config": actor_config(loss_agg_mode)}
    more["rollout_is_weights"] = torch.rand(6, 20) if corrected else None
    loss, metrics = core_algos.get_policy_loss_fn("cw_grpo")(**arguments, **more)

    given = (arguments[name] for name in ("log_prob", "advantages", "response_mask"))
    reweighted, groups = reference_advantages(*given, [0] * 6)
    ours = arguments | {"advantages": torch.tensor(reweighted)}
    expected, vanilla_metrics = core_algos.compute_policy_loss_vanilla(**ours, **more)
    gradients = [torch.autograd.grad(value, arguments["log_prob"])[0] for value in (loss, expected)]
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert metrics["actor/pg_clipfrac_lower"] > 0  # the dual clip took part
    assert {name: metrics[name] for name in vanilla_metrics} == pytest.approx(vanilla_metrics)
    assert metrics["cw_grpo/sigma"] == pytest.approx(groups[0]["sigma"], rel=1e-5)


@pytest.mark.parametrize("fault", ["", "NaN", "infinite advantage"])
def test_on_a_device_the_loss_is_that_of_the_cpu(fault):
    """Forward and backward, and what is refused."""
    results = []
    with Pretend():
        for place in (lambda value: value, on_device):
            arguments = {name: place(value.detach()) for name, value in loss_arguments().items()}
            if fault == "NaN":
                arguments["log_prob"][1, 0] = float("nan")
            if fault == "infinite advantage":
                arguments["advantages"][2, 0] = float("inf")
            arguments["log_prob"].requires_grad_()
            try:
                loss, metrics = core_algos.get_policy_loss_fn("cw_grpo")(**arguments, config=actor_config())
                (gradient,) = torch.autograd.grad(loss, arguments["log_prob"])
                results.append((back(loss).item(), back(gradient).tolist(), metrics["cw_grpo/sigma"]))
            except NonFiniteError as error:
                results.append(str(error))
    assert results[0] == results[1] and isinstance(results[0], str) == bool(fault)
