"""How the studies draw answers, against the model's own passes."""

import pytest

pytest.importorskip("verl")

import sys

import torch
from interpreter import ROOT
from transformers import AutoModelForCausalLM, DynamicCache

sys.path.append(str(ROOT / "examples" / "study"))
from sampling import ONE_TOKEN, sampled_ids

MODEL = ROOT / "examples" / "cpu" / "model"


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation=ONE_TOKEN)


@torch.no_grad()
def test_attention_of_one_token_is_that_of_the_whole_row(model):
    torch.manual_seed(0)
    ids = torch.randint(300, (4, 7))
    whole = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)(input_ids=ids).logits
    cache = DynamicCache()
    first = model(input_ids=ids[:, :5], past_key_values=cache).logits
    others = [model(input_ids=ids[:, at : at + 1], past_key_values=cache).logits for at in (5, 6)]
    torch.testing.assert_close(torch.cat([first, *others], 1), whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_answers_have_the_frequencies_of_the_model(model):
    """Of two tokens, where the second one's probability depends on the first."""
    torch.manual_seed(0)
    prompts, answers, end = torch.randint(300, (2, 6)), 20_000, 0
    logits = model(input_ids=prompts).logits[:, -1]
    drawn = list(sampled_ids(model, end, prompts, answers, 2))
    for place, prompt in enumerate(prompts):
        counts = {tuple(ids): copies for at, ids, copies in drawn if at == place}
        assert sum(counts.values()) == answers
        first = int(logits[place].argmax())
        after = model(input_ids=torch.cat([prompt, torch.tensor([first])])[None]).logits[0, -1]
        second = int(after.argmax())
        probability = float(logits[place].softmax(-1)[first] * after.softmax(-1)[second])
        error = (probability * (1 - probability) / answers) ** 0.5
        assert counts[first, second] / answers == pytest.approx(probability, abs=5 * error)
