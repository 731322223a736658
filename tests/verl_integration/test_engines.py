"""The plugin under verl's FSDP2 and Megatron engines: the same model and batch, compared with Hugging Face."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from interpreter import ROOT, python
from reference import grpo_advantages, reference_advantages
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from cw_plugin.errors import DataError
from cw_plugin.evaluation.models import find_models, merged
from cw_plugin.memory.models import parameter_shapes, read_shape
from cw_plugin.verl_integration.doctor.memory import megatron, tracked

ROWS, PROMPT, RESPONSE = 8, 6, 10
ENGINES = [
    ("megatron", "--tp", "2"),
    pytest.param(("megatron", "--pp", "2"), marks=pytest.mark.slow),
    pytest.param(("megatron",), marks=pytest.mark.slow),
    pytest.param(("fsdp2",), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def batch(tmp_path_factory):
    """A Qwen2 with random weights, and two prompts with four responses each, ragged on both sides."""
    folder = tmp_path_factory.mktemp("engines")
    model = folder / "model"
    shutil.copytree(ROOT / "examples" / "cpu" / "model", model)  # its tokenizer
    torch.manual_seed(0)
    config = Qwen2Config.from_pretrained(
        model,
        num_hidden_layers=4,
        layer_types=["full_attention"] * 4,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,  # log-probs that differ
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(model)

    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(0, config.vocab_size, (ROWS, PROMPT + RESPONSE), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    for row, (left, right) in enumerate([(2, 0), (0, 3), (0, 0), (1, 1), (0, 7), (3, 0), (0, 2), (1, 0)]):
        attention_mask[row, :left] = 0
        attention_mask[row, PROMPT + RESPONSE - right :] = 0
    response_mask = attention_mask[:, PROMPT:].clone()
    rewards = torch.zeros(ROWS, RESPONSE)
    rewards[:, 0] = torch.tensor([1.0, 2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0])
    tensors = {
        "input_ids": input_ids,
        "prompts": input_ids[:, :PROMPT],
        "responses": input_ids[:, PROMPT:],
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0),
        "response_mask": response_mask,
    }
    uids = np.array(["a", "b"] * 4, dtype=object)
    torch.save({**tensors, "model": str(model), "rewards": rewards, "uids": uids}, folder / "batch.pt")
    return folder, tensors, rewards, uids


@pytest.fixture(scope="module")
def hugging_face(batch):
    """Log-probs, and the gradient norms of -1/N sum of w~ A log pi with weights by group and over the micro-batch."""
    folder, tensors, rewards, uids = batch
    model = AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager", dtype=torch.float32)
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


def engine_step(processes: int, *arguments: str | Path) -> None:
    environment = {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    program = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    result = python(*program, ROOT / "tests" / "tools" / "engine_step.py", *arguments, **environment)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]


@pytest.mark.parametrize("engine", ENGINES, ids=" ".join)
def test_one_step(engine, batch, hugging_face, tmp_path):
    backend, *parallel = engine
    folder, tensors, _, _ = batch
    log_probs, advantages, norms = hugging_face
    engine_step(2 if parallel else 1, backend, folder / "batch.pt", tmp_path / "out.pt", *parallel)

    out = torch.load(tmp_path / "out.pt")
    mask = tensors["response_mask"].bool()
    torch.testing.assert_close(out["log_probs"][mask], log_probs[mask], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out["advantages"].double(), advantages, rtol=1e-4, atol=1e-5)
    for loss_mode, norm in norms.items():
        # so that any two engines agree to 1e-4
        assert out[loss_mode]["grad_norm"] == pytest.approx(norm, rel=4e-5), loss_mode
    assert out["cw_grpo"]["cw_grpo/sigma"] > 0
    assert norms["vanilla"] != pytest.approx(norms["cw_grpo"], rel=1e-2)  # the two reweight differently


@pytest.mark.parametrize(
    "engine",
    [
        ("fsdp2",),
        ("megatron", "--half"),
        pytest.param(("megatron", "--half", "--tp", "2"), marks=pytest.mark.slow),
        pytest.param(("megatron", "--half", "--pp", "2"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("tied", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_calculated_memory_is_what_the_engine_holds(tied, engine, batch, tmp_path):
    """Weights, gradients and optimizer of rank 0 of two. Megatron also pads each parameter to 64 elements."""
    model = tmp_path / "model"
    shutil.copytree(batch[0] / "model", model)
    size = {"hidden_size": 256, "intermediate_size": 512, "tie_word_embeddings": tied}
    config = Qwen2Config.from_pretrained(model, **size)
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    torch.save(torch.load(batch[0] / "batch.pt", weights_only=False) | {"model": str(model)}, tmp_path / "batch.pt")
    engine_step(2, engine[0], tmp_path / "batch.pt", tmp_path / "out.pt", *engine[1:])

    shape = read_shape(str(model))
    if engine[0] == "fsdp2":
        calculated = tracked.fsdp2_training(shape, ranks=2, tokens=PROMPT + RESPONSE, recompute=True)
    else:
        parallel = megatron.Parallel(tp=1 + ("--tp" in engine), pp=1 + ("--pp" in engine), dp=2 - (len(engine) > 2))
        calculated = megatron.static(megatron.stage_parameters(parameter_shapes(shape), parallel, 0), parallel)
    for name, size in torch.load(tmp_path / "out.pt")["held"].items():
        assert calculated[name] == pytest.approx(size, rel=0.01), name


@pytest.mark.slow
@pytest.mark.parametrize(("tied", "parallel"), [(True, "--tp"), (False, "--pp")])
def test_a_checkpoint_without_hugging_face_weights_is_merged(tied, parallel, batch, tmp_path, monkeypatch):
    """What verl saves with use_dist_checkpointing=True, merged for an evaluation, is what the engine trained."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")  # as within a job, whose peers take no part in merging
    model = tmp_path / "model"
    shutil.copytree(batch[0] / "model", model)
    if not tied:
        AutoModelForCausalLM.from_pretrained(model, tie_word_embeddings=False).save_pretrained(model)
    torch.save(torch.load(batch[0] / "batch.pt", weights_only=False) | {"model": str(model)}, tmp_path / "batch.pt")
    actor = tmp_path / "run" / "global_step_1" / "actor"
    files = (tmp_path / "batch.pt", tmp_path / "out.pt")
    engine_step(2, "megatron", *files, parallel, "2", "--lr", "0.01", "--save", actor)

    (found,) = find_models([str(tmp_path / "run")])
    with pytest.raises(DataError, match="copy config and tokenizer"):
        merged(found, tmp_path / "cache")
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, actor / "model" / "huggingface")
    assert find_models([str(tmp_path / "run")]) == [found]
    folder = merged(found, tmp_path / "cache")

    weights = torch.load(tmp_path / "out.pt")["weights"]
    before = AutoModelForCausalLM.from_pretrained(model).state_dict()
    assert all((weight != before[name]).any() for name, weight in weights.items())
    assert ("lm_head.weight" in weights) != tied
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    # the merger writes bfloat16, in which verl would have trained; the engine of this test trains in float32
    expected = {name: weight.bfloat16() for name, weight in weights.items()}
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(dict(loaded.state_dict()), expected, rtol=0, atol=0)
    text = "What is 2 + 2?"
    assert AutoTokenizer.from_pretrained(folder).encode(text) == AutoTokenizer.from_pretrained(model).encode(text)
