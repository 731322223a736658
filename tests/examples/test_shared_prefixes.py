"""The forward pass of the pretrained model's study, against the model's own."""

import pytest

pytest.importorskip("verl")

import sys

import torch
from interpreter import ROOT
from transformers import AutoModelForCausalLM

sys.path.append(str(ROOT / "examples" / "study" / "pretrained"))
from shared_prefixes import log_probs_and_entropies, tree

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


def test_equal_beginnings_are_one_node(batch):
    ids, is_token = batch
    rows = [row[seen].tolist() for row, seen in zip(ids, is_token, strict=True)]
    beginnings = {tuple(row[:end]) for row in rows for end in range(1, len(row) + 1)}
    of = tree(ids, is_token)
    seen = [tuple(of.tokens[is_seen].tolist()) for is_seen in of.is_seen]
    assert len(seen) == len(beginnings) < is_token.sum() and set(seen) == beginnings
    assert of.positions.tolist() == [len(beginning) - 1 for beginning in seen]
