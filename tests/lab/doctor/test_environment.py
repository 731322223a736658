"""The doctor's checks of packages and GPUs."""

import functools
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from cw_plugin.lab.compose import compose
from cw_plugin.lab.doctor import environment

A = "actor_rollout_ref"
ENGINES = {"fsdp2": [], "megatron": ["model_engine=megatron"]}


@functools.cache
def default(engine: str):
    return OmegaConf.to_container(compose([f"{A}.rollout.name=vllm", *ENGINES[engine]]))


def run_of(engine: str, *changes: str):
    return OmegaConf.merge(default(engine), OmegaConf.from_dotlist(list(changes)))


def test_what_gpus_lack_is_said(tmp_path, monkeypatch):
    """The torch of this environment is a build for CPUs."""
    monkeypatch.setattr(environment, "DEVICES", tmp_path)
    assert list(environment.check_gpus(run_of("fsdp2"))) == []
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    cannot, few = environment.check_gpus(run_of("fsdp2", "trainer.n_gpus_per_node=4"))
    assert "cannot use the GPUs of this machine (AssertionError: Torch not compiled with CUDA enabled)" in cannot.what
    assert few.fix == "trainer.n_gpus_per_node=2" and not few.fatal
    assert list(environment.check_gpus(run_of("fsdp2", "trainer.device=cpu"))) == []


@pytest.mark.parametrize("release", ["trl==1.16.0", None])
def test_a_trl_beside_which_verls_fsdp_engine_does_not_start_is_named(release, packages, monkeypatch):
    if release:
        folder = str(packages(release))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", folder)
    found = list(environment.check_trl(run_of("fsdp2")))
    assert len(found) == bool(release)
    assert all("'AutoModelForCausalLMWithValueHead' from 'trl'" in finding.what for finding in found)
    assert list(environment.check_trl(run_of("megatron"))) == []


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("fsdp2", {"flash_attn": "flash-attn"}),
        (
            "megatron",
            {
                "flash_attn": "flash-attn",
                "megatron.bridge": "megatron-bridge",
                "transformer_engine.pytorch": "transformer-engine[pytorch]",
            },
        ),
    ],
)
def test_the_packages_that_this_environment_lacks_are_named(name, lacks):
    """It has Ray, vLLM, TransferQueue and Megatron-core, and nothing that needs CUDA."""
    found = list(environment.check_missing_packages(run_of(name)))
    assert {finding.what.split()[0] for finding in found} == set(lacks) and all(finding.fatal for finding in found)
    for finding in found:
        package = lacks[finding.what.split()[0]]
        cause = "attn_implementation=flash_attention_2" if package == "flash-attn" else "model_engine=megatron"
        assert f"is not installed, and {cause}" in finding.what
        assert finding.fix.startswith(f"install {package}; ")
    assert list(environment.check_missing_packages(run_of(name, "trainer.device=cpu"))) == []
    sdpa = run_of(name, f"{A}.model.override_config.attn_implementation=sdpa")
    assert not any("flash_attn" in finding.what for finding in environment.check_missing_packages(sdpa))


@pytest.mark.parametrize(
    ("setting", "modules"),
    [
        (f"{A}.rollout.name=trtllm", {"flash_attn", "tensorrt_llm"}),
        (f"{A}.rollout.name=mine", {"flash_attn"}),  # which a user has registered with verl
        ("trainer.device=npu", set()),  # verl has attention of its own there
    ],
)
def test_a_rollout_and_a_device_need_the_modules_that_verl_imports(setting, modules):
    found = list(environment.check_missing_packages(run_of("fsdp2", setting)))
    assert {finding.what.split()[0] for finding in found} == modules


def test_a_package_that_breaks_when_it_is_imported_hides_no_other(tmp_path, monkeypatch):
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text("raise OSError('libcudart.so is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = [finding.what for finding in environment.check_missing_packages(run_of("megatron"))]
    assert [what.split()[0] for what in found] == ["megatron.bridge", "flash_attn"]


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    packages = [environment.Package(name, name, "verl's trainer") for name in ("not_there", "flash_attn", "ray")]
    monkeypatch.setattr(environment, "needed", lambda config: packages)
    (missing,) = environment.check_missing_packages(run_of("fsdp2"))
    assert missing.what == "not_there is not installed, and verl's trainer imports it"
    (finding,) = environment.check_packages(run_of("fsdp2"))
    assert "flash_attn is installed and cannot be imported (ImportError: built for another torch)" in finding.what
