"""The forward pass of the pretrained model's study, against the model's own."""

import sys

import pytest
import torch
from interpreter import ROOT
from transformers import AutoModelForCausalLM

sys.path.append(str(ROOT / "examples" / "study" / "pretrained"))
from shared_prompts import answer_logits, entropies

PROMPT, TIME = 7, 5


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(ROOT / "examples" / "cpu" / "model", dtype=torch.float32)


@pytest.fixture
def ids():
    """Four answers to each of three prompts, in an order that mixes the prompts."""
    torch.manual_seed(0)
    prompts = torch.randint(300, (3, PROMPT)).repeat_interleave(4, dim=0)
    return torch.cat([prompts, torch.randint(300, (12, TIME))], dim=1)[torch.randperm(12)]


def test_logits_and_gradients_are_those_of_every_row_alone(model, ids):
    alone = model(input_ids=ids, logits_to_keep=TIME + 1).logits[:, :-1]
    shared = answer_logits(model, ids, TIME)
    torch.testing.assert_close(shared, alone, rtol=1e-4, atol=1e-5)
    weights = list(model.parameters())
    direction = torch.randn_like(alone)
    expected = torch.autograd.grad((alone * direction).sum(), weights)
    found = torch.autograd.grad((shared * direction).sum(), weights)
    for of_shared, of_alone in zip(found, expected, strict=True):
        torch.testing.assert_close(of_shared, of_alone, rtol=1e-3, atol=1e-3)


def test_a_prompt_with_fewer_answers_is_refused(model, ids):
    with pytest.raises(ValueError, match="11 rows have 3 prompts, of which some have more answers than others"):
        answer_logits(model, ids[1:], TIME)


def test_the_entropy_of_a_distribution():
    probabilities = torch.tensor([[0.5, 0.5], [1 - 1e-9, 1e-9]])
    assert entropies(probabilities.log()).tolist() == pytest.approx([0.693147, 0.0], abs=1e-6)
