"""Starts two processes of verl's engines (engine_step.py): for test_engines.py, and test_gpu_memory.py in examples."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interpreter import ROOT, python
from transformers import AutoModelForCausalLM, Qwen2Config

ROWS, PROMPT, RESPONSE = 8, 6, 10
ENGINES = {  # arguments of engine_step.step
    "fsdp2": {"backend": "fsdp2"},
    "megatron tp": {"backend": "megatron", "tp": 2},
    "megatron half": {"backend": "megatron", "half": True},
    "megatron half tp": {"backend": "megatron", "half": True, "tp": 2},
    "megatron half pp": {"backend": "megatron", "half": True, "pp": 2},
}


def make_model(folder: Path, **size: Any) -> Path:
    """A model with random weights and the tokenizer of examples/cpu/model."""
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
    shutil.copytree(ROOT / "examples" / "cpu" / "model", folder)
    config = Qwen2Config.from_pretrained(folder, **(small | size))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def make_batch(model: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor, np.ndarray]:
    """Two prompts with four responses each, ragged on both sides."""
    generator = torch.Generator().manual_seed(1)
    vocabulary = Qwen2Config.from_pretrained(model).vocab_size
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
    result = python(*program, ROOT / "tests" / "tools" / "engine_step.py", folder / "steps.json", **environment)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
    return [torch.load(each["out"]) for each in arguments]
