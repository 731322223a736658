"""The plugin under verl's FSDP2 and Megatron engines: the same model and batch, compared with Hugging Face."""

import pytest

pytest.importorskip("verl")

import shutil
from pathlib import Path

import torch
from engines import ENGINES, PROMPT, ROWS, make_batch, make_model, run_steps
from reference import grpo_advantages, reference_advantages
from transformers import AutoModelForCausalLM

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.evaluation.models import find_models, merged


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("engines") / "model")


@pytest.fixture(scope="module")
def batch(model):
    return make_batch(model)


@pytest.fixture(scope="module")
def output(model, batch, tmp_path_factory):
    """What a start of two processes computed with each engine."""
    engines = ["fsdp2", "megatron tp"]
    steps = [(model, ENGINES[name]) for name in engines]
    return dict(zip(engines, run_steps(tmp_path_factory.mktemp("steps"), batch, *steps), strict=True))


@pytest.fixture(scope="module")
def hugging_face(model, batch):
    """Log-probs, and the gradient norms of -1/N sum of A log pi and of w~ A log pi; the micro-batch is one group."""
    tensors, rewards, uids = batch
    model = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    inputs = {name: tensors[name] for name in ("input_ids", "attention_mask", "position_ids")}
    logits = model(**inputs).logits[:, PROMPT - 1 : -1]
    log_probs = logits.log_softmax(-1).gather(-1, tensors["responses"][..., None])[..., 0]

    mask, plain = tensors["response_mask"], grpo_advantages(rewards.sum(-1).tolist(), uids)
    weighted, _ = reference_advantages(log_probs, plain, mask, ["all"] * ROWS)
    norms = []
    for advantages in (torch.tensor(plain)[:, None], torch.tensor(weighted)):
        loss = -(advantages * log_probs * mask).sum() / mask.sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        norms.append(torch.stack([gradient.double().norm() for gradient in gradients]).norm().item())
    return log_probs.detach(), *norms


@pytest.mark.parametrize("engine", ["fsdp2", "megatron tp"])
def test_the_loss_has_the_gradient_of_the_weights(engine, output, batch, hugging_face):
    log_probs, plain, weighted = hugging_face
    out, mask = output[engine], batch[0]["response_mask"].bool()
    torch.testing.assert_close(out["log_probs"][mask], log_probs[mask], rtol=1e-5, atol=1e-5)
    assert out["grad_norm"] == pytest.approx(weighted, rel=4e-5)
    assert out["grad_norm"] != pytest.approx(plain, rel=1e-2)
    assert out["cw_grpo/sigma"] > 0


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
    of_merger = merged(found, tmp_path / "cache")

    weights = out["weights"]
    assert ("lm_head.weight" in weights) != tied
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    # the merger writes bfloat16, in which verl would have trained; the engine of this test trains in float32
    expected = {name: weight.bfloat16() for name, weight in weights.items()}
    loaded = AutoModelForCausalLM.from_pretrained(of_merger)
    torch.testing.assert_close(dict(loaded.state_dict()), expected, rtol=0, atol=0)
