"""The doctor's checks of packages."""

import pytest

pytest.importorskip("verl")

import functools
import inspect

from doctor_runs import A, changed
from verl.utils import tracking

from cw_plugin.lab import doctor
from cw_plugin.lab.compose import compose
from cw_plugin.lab.doctor import environment


@functools.cache
def default(engine: str):
    return compose([f"{A}.rollout.name=vllm", f"model_engine={engine}"])


@pytest.mark.parametrize("release", ["trl==1.16.0", None])
def test_a_trl_beside_which_verls_fsdp_engine_does_not_start_is_named(release, packages, monkeypatch):
    if release:
        folder = str(packages(release))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", folder)
    found = [finding for _, finding in doctor.examine(default("dp"), {"trl": doctor.CHECKS["trl"]})]
    assert len(found) == bool(release)
    assert all("'AutoModelForCausalLMWithValueHead' from 'trl'" in finding.what for finding in found)
    assert list(environment.check_trl(default("megatron"))) == []


@pytest.mark.parametrize(
    ("engine", "settings", "modules"),
    [
        ("dp", [], {"vllm", "flash_attn"}),
        ("megatron", [], {"vllm", "flash_attn", "megatron.core", "megatron.bridge", "transformer_engine.pytorch"}),
        ("dp", [f"{A}.model.override_config.attn_implementation=sdpa"], {"vllm"}),
        ("dp", [f"{A}.rollout.name=mine"], {"flash_attn"}),  # which a user has registered with verl
        (
            "megatron",
            [f"{A}.actor.megatron.vanilla_mbridge=True", f"{A}.rollout.name=sglang", "trainer.device=npu"],
            {"sglang", "megatron.core", "mbridge", "transformer_engine.pytorch"},  # verl has attention of its own there
        ),
    ],
)
def test_an_engine_a_rollout_and_a_device_need_the_modules_that_verl_imports(engine, settings, modules):
    settings = [*settings, "trainer.logger=[console,file]"]
    legacy = environment.needed(changed(default(engine), *settings, "trainer.use_v1=False")).keys()
    assert legacy == {"ray", "tensordict"} | modules
    assert environment.needed(changed(default(engine), *settings)).keys() == legacy | {"transfer_queue"}
    loggers = "trainer.logger=[console,vemlp_wandb,swanlab]"
    of_loggers = {"volcengine_ml_platform": "trainer.logger=vemlp_wandb", "swanlab": "trainer.logger=swanlab"}
    assert environment.needed(changed(default(engine), *settings, loggers, "trainer.device=cpu")) == of_loggers


def test_the_packages_of_loggers_are_those_that_verl_imports():
    code = inspect.getsource(tracking)
    assert all(f"import {module}" in code for module in set(environment._LOGGERS.values()) - {"tensorboard"})
    assert set(environment._LOGGERS) | {"console", "file"} == {*tracking.Tracking.supported_backend, "tracking"}


def test_a_package_that_is_missing_or_cannot_be_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    modules = dict.fromkeys(("not_there", "flash_attn", "ray"), "verl's trainer")
    monkeypatch.setattr(environment, "needed", lambda config: modules)
    (tmp_path / "here" / "not_there").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")  # a folder here is not imported
    (_, missing), (_, broken) = doctor.examine(default("dp"), {"packages": doctor.CHECKS["packages"]})
    assert "verl's trainer imports not_there, which fails here (ModuleNotFoundError: No module" in missing.what
    assert "imports flash_attn, which fails here (ImportError: built for another torch)" in broken.what
    assert missing.fatal and broken.fatal
    for name in ("transformers", "trl"):  # of what TRL is not the cause, it is not said
        (tmp_path / f"{name}.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(environment.check_trl(default("dp"))) == []
