"""The boundary study's harness on TRL: grading, Clip-Cov, rounded weights; and short runs."""

import pytest

pytest.importorskip("trl")
pytest.importorskip("verl")

import math
import random
from dataclasses import replace

import torch


@pytest.fixture
def train(script):
    return script("train")


@pytest.mark.parametrize("ratio", [0.0002, 0.2])
def test_clip_cov_drops_what_verls_loss_drops(train, monkeypatch, ratio):
    """verl's own loss, differentiated: the tokens without a gradient are those that are dropped."""
    from verl.trainer.ppo import core_algos
    from verl.workers.config import ActorConfig, PolicyLossConfig

    monkeypatch.setitem(train.CLIP_COV, "ratio", ratio)
    generator = torch.Generator().manual_seed(0)
    log_probs = -torch.rand(16, 9, generator=generator).mul(3).exp() + 1
    mask = (torch.arange(9) < torch.randint(1, 10, (16, 1), generator=generator)).int()
    a = 3 * torch.randn(16, generator=generator)[:, None].expand(16, 9).clone()
    old = log_probs + 0.3 * torch.randn(16, 9, generator=generator)
    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=16, clip_ratio_low=1.0, clip_ratio_high=1.0,
        policy_loss=PolicyLossConfig(loss_mode="clip_cov", clip_cov_ratio=ratio),
    )  # fmt: skip
    policy = log_probs.clone().requires_grad_()
    torch.manual_seed(0)
    loss = core_algos.compute_policy_loss_clip_cov(old, policy, a, mask, "token-mean", config)[0]
    (gradient,) = torch.autograd.grad(loss, policy)
    torch.manual_seed(0)
    kept = train.kept_by_clip_cov(log_probs, old, a[:, :1], mask)
    change = torch.exp(policy - old)
    loss = (torch.maximum(-a * kept * change, -a * kept * change.clamp(0, 2)) * mask).sum() / mask.sum()
    assert 0 < (kept == 0).sum() == max(int(ratio * mask.sum()), 1)
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, policy)[0])


def test_answers_are_graded_as_the_packages_reward_does(train):
    from cw_plugin.lab.rewards import compute_score

    task, rng = train.task, random.Random(0)
    for problem in task.split_problems()["test"][:5]:
        right = task.response(problem, rng)
        assert train.grade(right, math.prod(problem)) == (1, 1)
        other = right.replace(str(math.prod(problem)), str(math.prod(problem) + 1))
        for text in (right, other, right.replace("<think>", ""), right[:-1], "", "<think></think>\\boxed{}"):
            score = compute_score("study/products", text, str(math.prod(problem)), opens_think=False)
            assert train.grade(text, math.prod(problem)) == (score["acc"], score["format"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"stale": 2, "width": 64},
        {"updates": 8, "method": "clip_cov"},
        {"updates": 1, "wrong": 30, "method": "width_2"},
        {"width": 64, "method": "entropy_bonus", "first": 2},
    ],
)
def test_a_run_from_start_to_end(train, script, monkeypatch, settings):
    monkeypatch.setattr("plan.VALIDATE_EVERY", 2)
    rows = train.train(replace(script("plan").CENTRE, steps=2, answers=1, **settings))
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert set(rows[1]) | {"accuracy", "seconds"} == set(script("plan").MEASURED)
    assert [row.get("accuracy") is not None for row in rows] == [True, False, True]
    assert 0.3 < rows[0]["accuracy"] < 0.6
    for row in rows:
        assert row.pop("accuracy", 0) == sum(row.pop("right", [])) / 256
        assert all(math.isfinite(value) for value in row.values())
    assert rows[1]["grad_norm"] > 0 and 0.6 < rows[1]["extreme_gradient_share"] < 1
    moved = abs(rows[1]["covariance_after"] - rows[1]["covariance_before"]) > 1e-6
    assert moved == (settings.get("method") == "width_2")
