"""cw-grpo memory, and the doctor's checks of memory, disk and packages. test_engines.py looks at verl's engines."""

import functools
import re
from pathlib import Path

import gpu_page
import pytest
from gpu_page import cells, totals
from interpreter import ROOT, cli
from omegaconf import OmegaConf

from cw_plugin.errors import NotCalculatedError, OptionsError
from cw_plugin.memory.stages import GIB, ROOM, SOLD_AS
from cw_plugin.verl_integration import doctor
from cw_plugin.verl_integration.compose import compose
from cw_plugin.verl_integration.doctor import environment, resources
from cw_plugin.verl_integration.doctor.memory import estimate

A = "actor_rollout_ref"
RECIPES = {
    "1.5B FSDP2": "run_r1_distill_qwen_1_5b_fsdp.sh",
    "7B FSDP2": "run_qwen2_5_math_7b_fsdp.sh",
    "1.5B Megatron": "run_r1_distill_qwen_1_5b_megatron.sh",
    "7B Megatron": "run_qwen2_5_math_7b_megatron.sh",
}
PARAMETERS = {"1.5B": 1_777_088_000, "7B": 7_615_616_512}  # of the checkpoints on the hub
FOR_80 = [pytest.param(name, marks=pytest.mark.slow if name == "7B FSDP2" else ()) for name in RECIPES]
FOR_48 = [pytest.param(name, marks=pytest.mark.slow if "FSDP2" in name else ()) for name in RECIPES]


def composed(name: str, *overrides: str):
    return compose([str(ROOT / "examples" / RECIPES[name]), *overrides])


@functools.cache
def printed(name: str):
    return composed(name)


def recipe(name: str, *changes: str):
    """What a recipe prints, and then changes: nothing else follows from them. Each script runs once."""
    return OmegaConf.merge(printed(name), OmegaConf.from_dotlist(list(changes)))


@pytest.mark.parametrize("name", FOR_80)
def test_a_recipe_needs_what_the_page_says_and_fits_80_gb(name):
    needs = estimate(recipe(name), SOLD_AS[80])
    *stages, _, _, _, host, checkpoint = cells(name)
    assert totals(needs) == stages
    assert (f"{needs.host / GIB:.0f} GiB", f"{needs.checkpoint / 1e9:.0f} GB") == (host, checkpoint)
    assert needs.model == PARAMETERS[name.split()[0]]
    assert list(resources.compare(recipe(name), needs, SOLD_AS[80], "")) == []
    first_lines = (ROOT / "examples" / RECIPES[name]).read_text().split("set -e")[0]
    assert f"takes {needs.largest.total / GIB:.0f} GiB" in first_lines


@pytest.mark.parametrize("name", FOR_48)
def test_what_the_page_adds_for_48_gb_makes_a_recipe_fit(name, monkeypatch):
    (text,) = cells(name, gpu_page.FOR_48)
    for variable, value in re.findall(r"\b([A-Z_]+)=([\d.]+)", text):
        monkeypatch.setenv(variable, value)
    config = composed(name, *re.findall(r"[a-z_]+\.[\w.]+=\w+", text))
    assert list(resources.compare(config, estimate(config, SOLD_AS[48]), SOLD_AS[48], "")) == []


def test_each_fix_makes_the_room_that_lacks():
    """Without recomputation, offloading and chunks, as verl's defaults are: one fix after the other, until it fits."""
    engine, share = f"{A}.actor.megatron", f"{A}.rollout.gpu_memory_utilization"
    overrides = [f"{engine}.override_transformer_config.recompute_{part}=null" for part in ("granularity", "method")]
    overrides += [f"{engine}.param_offload=False", f"{engine}.optimizer_offload=False", f"{share}=0.9"]
    config = composed("1.5B Megatron", *overrides, f"{A}.actor.entropy_from_logits_with_chunking=False")
    fixes = []
    while found := list(resources.compare(config, estimate(config, SOLD_AS[48]), SOLD_AS[48], "of 48 GB")):
        fixes.append(found[0].fix)
        assert len(fixes) < 9 and " on each GPU of 48 GB" in found[0].what
        config = OmegaConf.merge(config, OmegaConf.from_dotlist(found[0].fix.split()))
    said = " ".join(fixes)
    assert f"{share}=0." in said and "recompute_granularity=full" in said and "with_chunking=True" in said
    needs = estimate(config, SOLD_AS[48])
    assert needs.largest.total <= ROOM * SOLD_AS[48] * GIB


def test_a_micro_batch_that_is_not_set_is_named():
    given = ("log_prob_use_dynamic_bsz=False", "log_prob_micro_batch_size_per_gpu=null")
    config = recipe("7B Megatron", *(f"{A}.rollout.{setting}" for setting in given))
    with pytest.raises(OptionsError, match="log_prob_micro_batch_size_per_gpu is not set, and memory depends on it"):
        estimate(config, SOLD_AS[80])


@pytest.mark.parametrize("setting", [f"{A}.model.lora_rank=32", f"{A}.actor.strategy=veomni"])
def test_what_is_not_calculated_stops_no_training(setting, tmp_path):
    config = recipe("1.5B FSDP2", setting, f"trainer.default_local_dir={tmp_path}")
    for check in (resources.check_memory, resources.check_disk):
        (finding,) = check(config)
        assert not finding.fatal and "is not calculated, " in finding.what
        assert finding.what.endswith(", so this check is left out")
    with pytest.raises(NotCalculatedError):  # which cw-grpo memory says
        estimate(config, SOLD_AS[80])


def test_a_share_that_does_not_hold_the_weights_is_refused():
    config = recipe("7B Megatron", f"{A}.rollout.gpu_memory_utilization=0.2")
    (finding,) = resources.compare(config, estimate(config, SOLD_AS[80]), SOLD_AS[80], "")
    assert finding.fatal and "gives vLLM 16 GiB, and it needs about 17 for its weights alone" in finding.what


def test_checkpoints_that_do_not_fit_the_disk_are_found(tmp_path):
    config = recipe("1.5B Megatron", "trainer.total_training_steps=100000", "trainer.save_freq=1")
    config.trainer.default_local_dir = str(tmp_path / "not" / "there")
    (finding,) = resources.check_disk(config)
    assert finding.fatal and "100000 checkpoints of 25 GB need 2487923 GB" in finding.what
    assert f"{tmp_path}/not/there has " in finding.what and "trainer.default_local_dir=" in finding.fix
    config.trainer.max_actor_ckpt_to_keep = 1
    assert estimate(config, SOLD_AS[80]).checkpoints == 1


def test_before_training_a_small_gpu_is_refused_in_one_sentence(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '24576\\n24576\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert resources.gpus_here() == [24.0, 24.0]
    program.write_text("#!/bin/sh\nprintf '[N/A]\n24576\n24576\n'\n")  # the first shares the machine's memory
    assert resources.gpus_here() == [24.0, 24.0]
    monkeypatch.setattr(doctor, "QUICK", {})  # this environment lacks packages for GPUs, and the paper's data
    result = cli("doctor", "--quick", "--resources", ROOT / "examples" / RECIPES["7B Megatron"])
    (line,) = result.stderr.splitlines()
    assert result.exit_code == 2 and result.stdout == ""
    assert line.startswith("Error: training needs about 59 of 24 GiB on each GPU of this machine, more than there is")
    (finding,) = [f for f in environment.check_gpus(recipe("7B Megatron")) if "n_gpus_per_node" in f.what]
    assert finding.fix.startswith("NGPUS_PER_NODE=2")


def test_the_table_is_printed_and_a_size_that_is_not_known_is_refused():
    script = ROOT / "examples" / RECIPES["7B Megatron"]
    result = cli("memory", "--gpu", "48", script)
    assert result.exit_code == 1 and re.search(r"training +7\.1 +14\.2 +21\.3", result.stdout)
    assert "fix: a larger actor_rollout_ref.actor.megatron.tensor_model_parallel_size" in result.stdout
    result = cli("memory", "--gpu", "50", script)
    assert result.exit_code == 2 and "--gpu 50 is no size that is known here; use one of 24, 40, 48" in result.stderr


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("1.5B FSDP2", {"flash_attn": "flash-attn"}),
        (
            "1.5B Megatron",
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
    found = list(environment.check_missing_packages(recipe(name)))
    assert {finding.what.split()[0] for finding in found} == set(lacks) and all(finding.fatal for finding in found)
    for finding in found:
        package = lacks[finding.what.split()[0]]
        assert finding.fix == f"install {package} as {environment.PAGE} says" and (ROOT / environment.PAGE).exists()
    assert list(environment.check_missing_packages(recipe(name, "trainer.device=cpu"))) == []


@pytest.mark.parametrize(
    ("setting", "modules"),
    [
        (f"{A}.rollout.name=trtllm", {"flash_attn", "tensorrt_llm"}),
        (f"{A}.rollout.name=mine", {"flash_attn"}),  # which a user has registered with verl
        ("trainer.device=npu", set()),  # verl has attention of its own there
    ],
)
def test_a_rollout_and_a_device_need_the_modules_that_verl_imports_for_them(setting, modules):
    found = list(environment.check_missing_packages(recipe("1.5B FSDP2", setting)))
    assert {finding.what.split()[0] for finding in found} == modules


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(environment, "needed", lambda config: {"flash_attn": "flash-attn", "ray": "ray"})
    (finding,) = environment.check_packages(recipe("1.5B FSDP2"))
    assert "flash_attn is installed and cannot be imported (ImportError: built for another torch)" in finding.what
