"""The plugin under verl's FSDP2 and Megatron engines: the same model and batch, compared with Hugging Face."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreter import ROOT, python
from reference import grpo_advantages, reference_advantages
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from cw_plugin.errors import DataError
from cw_plugin.lab.doctor.memory import megatron, tracked
from cw_plugin.lab.evaluation.models import find_models, merged
from cw_plugin.memory.models import parameter_shapes, read_shape

ROWS, PROMPT, RESPONSE = 8, 6, 10
SLOW = pytest.mark.slow
ENGINES = {  # arguments of engine_step.step
    "fsdp2": {"backend": "fsdp2"},
    "megatron tp": {"backend": "megatron", "tp": 2},
    "megatron pp": {"backend": "megatron", "pp": 2},
    "megatron half": {"backend": "megatron", "half": True},
    "megatron half tp": {"backend": "megatron", "half": True, "tp": 2},
    "megatron half pp": {"backend": "megatron", "half": True, "pp": 2},
}
# Model and engine of the steps that one start of two processes does: of these in every run, of those in slow ones.
# Models with tied embeddings come last, because mbridge reads no other after one of them.
IN_EVERY_RUN = (("small", "fsdp2"), ("small", "megatron tp"), ("wide", "fsdp2"), ("wide", "megatron half"))
IN_SLOW_RUNS = (
    ("small", "megatron pp"),
    *(("wide", engine) for engine in ("megatron half tp", "megatron half pp")),
    *(("tied", engine) for engine in ("fsdp2", "megatron half", "megatron half tp", "megatron half pp")),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Has three models with random weights."""
    folder = tmp_path_factory.mktemp("engines")
    torch.manual_seed(3)  # with 0, both weightings happen to have the same gradient norm
    small = {
        "num_hidden_layers": 4,
        "layer_types": ["full_attention"] * 4,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,  # log-probs that differ
        "tie_word_embeddings": False,
    }
    wide = small | {"hidden_size": 256, "intermediate_size": 512}
    for name, size in {"small": small, "wide": wide, "tied": wide | {"tie_word_embeddings": True}}.items():
        shutil.copytree(ROOT / "examples" / "cpu" / "model", folder / name)  # its tokenizer
        config = Qwen2Config.from_pretrained(folder / name, **size)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def batch(folder):
    """Two prompts with four responses each, ragged on both sides."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = Qwen2Config.from_pretrained(folder / "small").vocab_size
    input_ids = torch.randint(0, vocabulary, (ROWS, PROMPT + RESPONSE), generator=generator)
    attention_mask = torch.ones_like(input_ids)
    for row, (left, right) in enumerate([(2, 0), (0, 3), (0, 0), (1, 1), (0, 7), (3, 0), (0, 2), (1, 0)]):
        attention_mask[row, :left] = 0
        attention_mask[row, PROMPT + RESPONSE - right :] = 0
    rewards = torch.zeros(ROWS, RESPONSE)
    rewards[:, 0] = torch.tensor([1.0, 2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0])
    tensors = {
        "input_ids": input_ids,
        "prompts": input_ids[:, :PROMPT],
        "responses": input_ids[:, PROMPT:],
        "attention_mask": attention_mask,
        "position_ids": (attention_mask.cumsum(-1) - 1).clamp(min=0),
        "response_mask": attention_mask[:, PROMPT:].clone(),
    }
    return tensors, rewards, np.array(["a", "b"] * 4, dtype=object)


def run_steps(folder: Path, batch: Any, *steps: tuple[Path, dict[str, Any]]) -> list[dict[str, Any]]:
    """What two processes computed, one step after another: with this model, and these arguments of engine_step.step."""
    tensors, rewards, uids = batch
    arguments = []
    for number, (model, given) in enumerate(steps):
        files = {"batch_file": str(folder / f"{number}-batch.pt"), "out": str(folder / f"{number}-out.pt")}
        torch.save({**tensors, "model": str(model), "rewards": rewards, "uids": uids}, files["batch_file"])
        arguments.append(given | files)
    (folder / "steps.json").write_text(json.dumps(arguments))
    environment = {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    program = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    result = python(
        *program, ROOT / "tests" / "tools" / "engine_step.py", folder / "steps.json", timeout=550, **environment
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    return [torch.load(each["out"]) for each in arguments]


@pytest.fixture(scope="module")
def output(folder, batch, tmp_path_factory):
    outputs: dict[tuple[str, str], dict[str, Any]] = {}

    def of_step(model: str, engine: str) -> dict[str, Any]:
        if (model, engine) not in outputs:
            steps = IN_EVERY_RUN if (model, engine) in IN_EVERY_RUN else IN_SLOW_RUNS
            given = [(folder / model, ENGINES[engine]) for model, engine in steps]
            outputs.update(zip(steps, run_steps(tmp_path_factory.mktemp("steps"), batch, *given), strict=True))
        return outputs[model, engine]

    return of_step


@pytest.fixture(scope="module")
def hugging_face(folder, batch):
    """Log-probs, and the gradient norms of -1/N sum of w~ A log pi with weights by group and over the micro-batch."""
    tensors, rewards, uids = batch
    model = AutoModelForCausalLM.from_pretrained(folder / "small", attn_implementation="eager", dtype=torch.float32)
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
    out = output("small", engine)
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
    ["fsdp2", "megatron half", *(pytest.param(f"megatron half {parallel}", marks=SLOW) for parallel in ("tp", "pp"))],
)
@pytest.mark.parametrize("model", [pytest.param("tied", marks=SLOW), "wide"])
def test_the_calculated_memory_is_what_the_engine_holds(model, engine, output, folder):
    """Weights, gradients and optimizer of rank 0 of two. Megatron also pads each parameter to 64 elements."""
    shape = read_shape(str(folder / model))
    if engine == "fsdp2":
        calculated = tracked.fsdp2_training(shape, ranks=2, tokens=PROMPT + RESPONSE, recompute=True)
    else:
        tp, pp = (ENGINES[engine].get(name, 1) for name in ("tp", "pp"))
        parallel = megatron.Parallel(tp=tp, pp=pp, dp=2 // (tp * pp))
        calculated = megatron.static(megatron.parameters_of(parameter_shapes(shape), parallel, 0), parallel)
    held = output(model, engine)["held"]
    assert set(held) == {"weights", "gradients", "optimizer"}
    for name, size in held.items():
        assert calculated[name] == pytest.approx(size, rel=0.01), name


@pytest.mark.slow
@pytest.mark.parametrize(("tied", "parallel"), [(True, "tp"), (False, "pp")])
def test_a_checkpoint_without_hugging_face_weights_is_merged(tied, parallel, folder, batch, tmp_path, monkeypatch):
    """What verl saves with use_dist_checkpointing=True, merged for an evaluation, is what the engine trained."""
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")  # as within a job, whose peers take no part in merging
    model = tmp_path / "model"
    shutil.copytree(folder / "small", model)
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
