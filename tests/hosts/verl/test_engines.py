"""The plugin under verl's FSDP2 and Megatron engines: the same model and batch, compared with Hugging Face."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from engines import ENGINES, PROMPT, ROWS, make_batch, make_model, run_steps
from reference import grpo_advantages, reference_advantages
from transformers import AutoModelForCausalLM, AutoTokenizer

from cw_plugin.errors import DataError
from cw_plugin.lab.evaluation.models import find_models, merged

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("engines") / "model")


@pytest.fixture(scope="module")
def batch(model):
    return make_batch(model)


@pytest.fixture(scope="module")
def output(model, batch, tmp_path_factory):
    """What a start of two processes computed, of two engines in every run, and of the third in slow ones."""
    outputs: dict[str, dict[str, Any]] = {}

    def of_step(engine: str) -> dict[str, Any]:
        if engine not in outputs:
            engines = [engine] if engine == "megatron pp" else ["fsdp2", "megatron tp"]
            steps = [(model, ENGINES[name]) for name in engines]
            outputs.update(zip(engines, run_steps(tmp_path_factory.mktemp("steps"), batch, *steps), strict=True))
        return outputs[engine]

    return of_step


@pytest.fixture(scope="module")
def hugging_face(model, batch):
    """Log-probs, and the gradient norms of -1/N sum of w~ A log pi with weights by group and over the micro-batch."""
    tensors, rewards, uids = batch
    model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    inputs = {name: tensors[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**inputs).logits[:, PROMPT - 1 : -1]
    log_probs = logits.log_softmax(-1).gather(-1, tensors["responses"][..., None])[..., 0]

    mask = tensors["response_mask"]
    column = grpo_advantages(rewards.sum(-1).tolist(), uids)
    advantages, norms = {}, {}
    for name, groups in (("vanilla", list(uids)), ("cw_grpo", ["all"] * ROWS)):
        weighted, _ = reference_advantages(log_probs, column, mask, groups)
        advantages[name] = torch.tensor(weighted, dtype=torch.float64)
        loss = -(advantages[name] * log_probs * mask).sum() / mask.sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        norms[name] = torch.stack([gradient.double().norm() for gradient in gradients]).norm().item()
    return log_probs.detach(), advantages["vanilla"], norms


@pytest.mark.parametrize("engine", ["fsdp2", "megatron tp", pytest.param("megatron pp", marks=SLOW)])
def test_one_step(engine, output, batch, hugging_face):
    tensors, _, _ = batch
    log_probs, advantages, norms = hugging_face
    out = output(engine)
    mask = tensors["response_mask"].bool()
    torch.testing.assert_close(out["log_probs"][mask], log_probs[mask], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out["advantages"].double(), advantages, rtol=1e-4, atol=1e-5)
    for loss_mode, norm in norms.items():
        # so that any two engines agree to 1e-4
        assert out[loss_mode]["grad_norm"] == pytest.approx(norm, rel=4e-5), loss_mode
    assert out["cw_grpo"]["cw_grpo/sigma"] > 0
    assert norms["vanilla"] != pytest.approx(norms["cw_grpo"], rel=1e-2)  # the two reweight differently


@pytest.mark.slow
@pytest.mark.parametrize(("tied", "parallel"), [(True, "tp"), (False, "pp")])
def test_a_checkpoint_without_hugging_face_weights_is_merged(tied, parallel, model, batch, tmp_path, monkeypatch):
    """What verl saves with use_dist_checkpointing=True, merged for an evaluation, is what the engine trained."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")  # as within a job, whose peers take no part in merging
    model = shutil.copytree(model, tmp_path / "model")
    AutoModelForCausalLM.from_pretrained(model, tie_word_embeddings=tied).save_pretrained(model)
    actor = tmp_path / "run" / "global_step_1" / "actor"
    arguments = {"backend": "megatron", parallel: 2, "lr": 0.01, "save": str(actor)}
    (out,) = run_steps(tmp_path, batch, (model, arguments))

    (found,) = find_models([str(tmp_path / "run")])
    with pytest.raises(DataError, match="copy config and tokenizer"):
        merged(found, tmp_path / "cache")
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, actor / "model" / "huggingface")
    assert find_models([str(tmp_path / "run")]) == [found]
    of_merger = merged(found, tmp_path / "cache")

    weights = out["weights"]
    before = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert all((weight != before[name]).any() for name, weight in weights.items())
    assert ("lm_head.weight" in weights) != tied
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    # the merger writes bfloat16, in which verl would have trained; the engine of this test trains in float32
    expected = {name: weight.bfloat16() for name, weight in weights.items()}
    loaded = AutoModelForCausalLM.from_pretrained(of_merger)
    torch.testing.assert_close(dict(loaded.state_dict()), expected, rtol=0, atol=0)
    text = "What is 2 + 2?"
    assert AutoTokenizer.from_pretrained(of_merger).encode(text) == AutoTokenizer.from_pretrained(model).encode(text)
