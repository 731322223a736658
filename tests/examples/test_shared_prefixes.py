"""The forward pass of the pretrained model's study, against the model's own."""

import pytest

pytest.importorskip("verl")

import sys

import torch
from interpreter import ROOT
from transformers import AutoModelForCausalLM

sys.path.append(str(ROOT / "examples" / "study" / "pretrained"))
from shared_prefixes import entropies, log_probs_and_entropies, tree

TIME = 5


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(ROOT / "examples" / "cpu" / "model", dtype=torch.float32)


@pytest.fixture
def batch():
    """Twelve rows: three prompts, the third padded in front; two answers that share tokens, the second ended early."""
    torch.manual_seed(0)
    prompts = torch.randint(1, 300, (3, 7)).repeat_interleave(4, dim=0)
    answers = torch.randint(1, 300, (12, TIME))
    answers[1] = answers[0]
    answers[2, :3] = answers[0, :3]
    answers[5, :2] = answers[0, :2]  # after another prompt
    ids = torch.cat([prompts, answers], dim=1)
    is_token = torch.ones_like(ids, dtype=torch.bool)
    is_token[8:, :2] = False
    is_token[[1, 6], -2:] = False
    ids[~is_token] = 0
    order = torch.randperm(12)
    return ids[order], is_token[order]


def test_log_probs_entropies_and_gradients_are_those_of_every_row_alone(model, batch):
    ids, is_token = batch
    is_answer = is_token[:, -TIME:]
    positions = (is_token.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=is_token.long(), position_ids=positions).logits[:, -TIME - 1 : -1]
    policy = torch.distributions.Categorical(logits=logits)
    alone = torch.stack([policy.log_prob(ids[:, -TIME:]), policy.entropy()])[:, is_answer]
    shared = torch.stack(log_probs_and_entropies(model, ids, is_token, TIME))[:, is_answer]
    torch.testing.assert_close(shared, alone, rtol=1e-4, atol=1e-5)

    weights = list(model.parameters())
    direction = torch.randn_like(alone)
    expected = torch.autograd.grad((alone * direction).sum(), weights)
    found = torch.autograd.grad((shared * direction).sum(), weights)
    for of_shared, of_alone in zip(found, expected, strict=True):
        torch.testing.assert_close(of_shared, of_alone, rtol=1e-3, atol=1e-3)


def test_equal_beginnings_are_one_node():
    ids = torch.tensor([[5, 6, 7], [5, 6, 8], [0, 5, 6], [6, 6, 0]])
    is_token = torch.tensor([[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 0]]).bool()
    of = tree(ids, is_token)
    beginnings = [[int(of.tokens[other]) for other in of.is_seen[node].nonzero()[:, 0]] for node in of.node.flatten()]
    assert beginnings[:3] == [[5], [5, 6], [5, 6, 7]]
    assert beginnings[3:6] == [[5], [5, 6], [5, 6, 8]]
    assert beginnings[7:9] == [[5], [5, 6]]
    assert beginnings[9:] == [[6], [6, 6], [6, 6]]
    assert of.node[0, :2].tolist() == of.node[1, :2].tolist()
    assert of.positions[of.node[0]].tolist() == [0, 1, 2]
    assert of.positions[of.node[2, 1:]].tolist() == [0, 1]


def test_the_entropy_of_a_distribution():
    probabilities = torch.tensor([[0.5, 0.5], [1 - 1e-9, 1e-9]])
    assert entropies(probabilities.log()).tolist() == pytest.approx([0.693147, 0.0], abs=1e-6)
