"""The models that arguments name, and checkpoints of verl as models."""

import pytest

pytest.importorskip("verl")

import json
import shutil
from pathlib import Path

import torch
from interpreter import ROOT
from transformers import AutoModelForCausalLM

from cw_plugin.lab.errors import DataError
from cw_plugin.lab.evaluation.models import find_models, fingerprint, merged

MODEL = ROOT / "examples" / "cpu" / "model"


def checkpoint(folder: Path) -> Path:
    (folder / "actor" / "huggingface").mkdir(parents=True)
    (folder / "actor" / "model_world_size_1_rank_0.pt").write_text("weights")
    return folder


def test_a_run_means_all_its_checkpoints_and_models_may_be_named(tmp_path, monkeypatch):
    folder = tmp_path / "run" / "checkpoints"
    for step in (100, 20):
        checkpoint(folder / f"global_step_{step}")
    (folder / "global_step_5").mkdir()  # verl keeps the folder of a deleted checkpoint
    arguments = [folder.parent, folder / "global_step_100", MODEL, f"b={MODEL}", f"again={folder}", "deepseek-ai/R1"]
    assert [(model.name, model.step) for model in find_models(map(str, arguments))] == [
        ("run-global_step_20", 20), ("run-global_step_100", 100), ("run-global_step_100", 100), ("model", None),
        ("b", None), ("again-global_step_20", 20), ("again-global_step_100", 100), ("R1", None),
    ]  # fmt: skip
    monkeypatch.chdir(MODEL.parent)  # a folder is found from anywhere, and a name on the hub stays one
    places = [str(model.place) for model in find_models(["Qwen/Qwen2.5-Math-7B", "base=Qwen/Q", "model"])]
    assert places == ["Qwen/Qwen2.5-Math-7B", "Qwen/Q", str(MODEL)]


def test_a_checkpoint_is_merged_once_and_not_where_its_weights_are_saved(tmp_path):
    place, cache = checkpoint(tmp_path / "run" / "global_step_1"), tmp_path / "cache"
    (model,) = find_models([str(place)])
    before = cache / f"{model.name}-{fingerprint(place / 'actor')[:12]}"  # which verl's merger has written
    before.mkdir(parents=True)
    for name in ("optim_world_size_1_rank_0.pt", "extra_state_world_size_1_rank_0.pt"):  # these are no weights
        (place / "actor" / name).touch()
    assert merged(model, cache) == str(before)
    whole = fingerprint(place / "actor")
    (place / "actor" / "model-extra.pt").touch()  # as a model's name may be
    assert fingerprint(place / "actor") != whole
    for saved in (place / "actor" / "model" / "huggingface", place / "actor" / "huggingface"):  # by a bridge, by FSDP
        saved.mkdir(parents=True, exist_ok=True)
        (saved / "model.safetensors").touch()
        assert merged(model, cache) == str(saved)


@pytest.mark.slow
def test_a_lora_checkpoint_is_not_evaluated_as_its_base_model(tmp_path):
    """As verl's FSDP engine saves one, through verl's own merger."""
    from peft import LoraConfig, get_peft_model

    place = checkpoint(tmp_path / "run" / "global_step_1")
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, place / "actor" / "huggingface")
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    torch.save(adapted.state_dict(), place / "actor" / "model_world_size_1_rank_0.pt")
    (place / "actor" / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    lora = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}
    (place / "actor" / "lora_train_meta.json").write_text(json.dumps(lora))
    with pytest.raises(DataError, match=r"LoRA adapter.*merge_and_unload"):
        merged(*find_models([str(place)]), tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("run*/"))
