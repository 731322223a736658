"""The covariance distribution, against tokens written out one by one, and the law that ties it to entropy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference import reference_weights

from cw_plugin.bins import add_bins, side
from cw_plugin.covariance import CovarianceRecorder
from cw_plugin.weights import reweight_responses, reweight_tokens


def batch(seed: int, rows: int = 24, time: int = 60):
    g = torch.Generator().manual_seed(seed)
    log_probs = -torch.rand(rows, time, generator=g).pow(4) * 8
    mask = torch.rand(rows, time, generator=g) < 0.7
    log_probs[~mask] = float("nan")  # what stands off the mask does not matter
    return log_probs, torch.randn(rows, generator=g), mask, torch.randperm(rows, generator=g) % (rows // 6)


def tokens(log_probs, advantages, mask, group) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """c, w~ and (row, position) of every valid token, in float64."""
    weights, _ = reference_weights(log_probs.tolist(), advantages.tolist(), mask.tolist(), group.tolist())
    c, weight, place = [], [], []
    for number in group.unique():
        valid = [
            (i, t) for i in (group == number).nonzero().flatten().tolist() for t in mask[i].nonzero().flatten().tolist()
        ]
        x = np.array([log_probs[i, t].item() for i, t in valid])
        a = np.array([advantages[i].item() for i, _ in valid])
        c.append((x - x.mean()) * (a - a.mean()))
        weight += [weights[i][t] for i, t in valid]
        place += valid
    return np.concatenate(c), np.array(weight), np.array(place)


def record(seed: int, top: int = 0, kernel: str = "gaussian") -> CovarianceRecorder:
    log_probs, advantages, mask, group = batch(seed)
    recorder = CovarianceRecorder(mask, top)
    reweight_responses(log_probs, advantages, mask, group, kernel, observe=recorder)
    return recorder


def test_recording_changes_nothing():
    log_probs, advantages, mask, group = batch(0)
    plain, statistics = reweight_responses(log_probs, advantages, mask, group)
    observed, same = reweight_responses(log_probs, advantages, mask, group, observe=CovarianceRecorder(mask, 3))
    assert torch.equal(plain, observed) and statistics == same


@pytest.mark.parametrize("sign", [1, -1])
def test_shares_and_means_are_those_of_the_tokens(sign):
    c, weight, _ = tokens(*batch(1))
    bins = record(1).bins()
    assert bins["tokens"].sum() == len(c)
    assert bins["covariance"].sum() == pytest.approx(c.sum(), rel=1e-4)
    assert bins["weight"].sum() == pytest.approx(len(c), rel=1e-5)
    assert bins["weighted"].sum() == pytest.approx((weight * c).sum(), rel=1e-3, abs=1e-4)

    extremes = np.sort(sign * c[sign * c > 0])[::-1]
    recorded = side(bins, sign)
    assert recorded.tokens[-1] == len(extremes)
    for threshold, count, covariance in zip(recorded.threshold, recorded.tokens, recorded.covariance, strict=True):
        assert count == pytest.approx((extremes >= threshold).sum(), abs=1)  # a token at the very edge, in float32
        assert covariance == pytest.approx(extremes[:count].sum(), rel=1e-4)
    for share in (0.01, 0.2, 0.4, 1.0):
        count = round(share * len(extremes))
        threshold, mean = recorded.at(count / len(extremes))
        assert threshold == pytest.approx(extremes[count - 1], rel=0.02)
        assert mean == pytest.approx(extremes[:count].mean(), rel=0.02)


def test_kernel_none_records_plain_grpo():
    plain, weighted = record(2, kernel="none").bins(), record(2).bins()
    assert np.array_equal(plain["tokens"], weighted["tokens"])
    assert plain["weight"] == pytest.approx(plain["tokens"])
    assert not np.allclose(weighted["weight"], weighted["tokens"])


def test_bins_of_two_batches_add_up():
    both = add_bins([record(3).bins(), record(4).bins()])
    c = np.concatenate([tokens(*batch(seed))[0] for seed in (3, 4)])
    for sign in (1, -1):
        added = side(both, sign)
        assert added.tokens[-1] == (sign * c > 0).sum()
        assert added.covariance[-1] == pytest.approx(sign * c[sign * c > 0].sum(), rel=1e-4)


def test_the_most_extreme_tokens():
    c, weight, place = tokens(*batch(5))
    found = record(5, top=4).extremes()
    order = np.argsort(c)
    expected = [*order[::-1][:4], *order[:4]]
    assert found["covariance"] == pytest.approx(c[expected], rel=1e-3)
    assert found["weight"] == pytest.approx(weight[expected], rel=1e-2)
    assert np.stack([found["row"], found["position"]], 1).tolist() == place[expected].tolist()


def test_a_batch_without_signal_has_no_sides():
    mask = torch.ones(4, 5, dtype=torch.bool)
    recorder = CovarianceRecorder(mask, 2)
    reweight_responses(-torch.rand(4, 5), torch.zeros(4), mask, observe=recorder)
    bins = recorder.bins()
    assert (bins["edge"].tolist(), bins["tokens"].tolist(), bins["weight"].tolist()) == ([0.0], [20], [20.0])
    assert len(recorder.extremes()["row"]) == 0 and len(side(bins, 1).tokens) == 0
    assert all(map(np.isnan, side(bins, 1).at(0.5)))


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
    reweighted, statistics = reweight_tokens(x, a, torch.ones_like(x, dtype=torch.long), kernel)
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
