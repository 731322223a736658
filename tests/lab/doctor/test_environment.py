"""The doctor's checks of packages and GPUs."""

import functools
import sys
from importlib.util import spec_from_file_location
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


def test_too_few_gpus_are_noted(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'GPU 0: NVIDIA L40S (UUID: GPU-8f1)'\necho 'GPU 1: NVIDIA L40S (UUID: GPU-9c2)'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = environment.check_gpus(run_of("fsdp2", "trainer.n_gpus_per_node=4"))
    (finding,) = [finding for finding in found if "n_gpus_per_node" in finding.what]
    assert finding.fix == "trainer.n_gpus_per_node=2" and not finding.fatal
    assert list(environment.check_gpus(run_of("fsdp2", "trainer.device=cpu"))) == []


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
def test_a_rollout_and_a_device_need_the_modules_that_verl_imports_for_them(setting, modules):
    found = list(environment.check_missing_packages(run_of("fsdp2", setting)))
    assert {finding.what.split()[0] for finding in found} == modules


def test_a_package_that_breaks_when_it_is_imported_hides_no_other(tmp_path, monkeypatch):
    """To see whether a module is there, the package that it is part of is not imported."""
    for name in ("transformer_engine", "megatron"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise OSError('libcudart.so is missing')")
    (tmp_path / "transformer_engine" / "pytorch.py").touch()
    (tmp_path / "elsewhere.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for module in [name for name in sys.modules if name.split(".")[0] in ("transformer_engine", "megatron")]:
        monkeypatch.delitem(sys.modules, module)
    found = [finding.what for finding in environment.check_missing_packages(run_of("megatron"))]
    assert [what.split()[0] for what in found] == ["megatron.core", "megatron.bridge", "flash_attn"]

    class Editable:
        """As pip installs megatron.core from a clone: a finder of its own knows where it lies."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            return spec_from_file_location(name, tmp_path / "elsewhere.py") if name == "megatron.core" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    found = [finding.what for finding in environment.check_missing_packages(run_of("megatron"))]
    assert [what.split()[0] for what in found] == ["megatron.bridge", "flash_attn"]


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    needed = {"flash_attn": "flash-attn", "ray": "ray"}
    monkeypatch.setattr(environment, "needed", lambda config: {"not_there": "not-there", **needed})
    missing, finding = environment.check_packages(run_of("fsdp2"))
    assert missing.what == "not_there is not installed, and verl's trainer imports it"
    assert "flash_attn is installed and cannot be imported (ImportError: built for another torch)" in finding.what
