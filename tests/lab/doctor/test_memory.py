"""cw-grpo memory, and the doctor's checks of memory, disk and packages. test_engines.py looks at verl's engines."""

import functools
import re
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

import gpu_page
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gpu_page import cells, totals
from interpreter import ROOT, cli
from omegaconf import OmegaConf

from cw_plugin.errors import NotCalculatedError, OptionsError
from cw_plugin.hosts.verl import doctor
from cw_plugin.lab.compose import compose
from cw_plugin.lab.doctor import environment, resources
from cw_plugin.lab.doctor.memory import estimate, tracked
from cw_plugin.lab.doctor.memory.estimate import checkpoints_after
from cw_plugin.memory.stages import GIB, ROOM, SOLD_AS, Estimate, Stage

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
    needs, gpu = estimate(config, SOLD_AS[48]), SOLD_AS[48] * GIB
    assert needs.largest.total <= ROOM * gpu
    assert needs.stages[0].total > (ROOM - 0.01) * gpu  # vLLM gets what is left, to the per cent


def test_a_micro_batch_that_is_not_set_is_named():
    given = ("log_prob_use_dynamic_bsz=False", "log_prob_micro_batch_size_per_gpu=null")
    config = recipe("7B Megatron", *(f"{A}.rollout.{setting}" for setting in given))
    with pytest.raises(OptionsError, match="log_prob_micro_batch_size_per_gpu is not set, and memory depends on it"):
        estimate(config, SOLD_AS[80])


@pytest.mark.parametrize(
    "setting", [f"{A}.model.lora_rank=32", f"{A}.actor.strategy=veomni", f"{A}.model.path=hdfs://host/model"]
)
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
    for kept, at_once in ((1, 2), (2, 2), (3, 3)):  # of 1, verl deletes the old one when it has written the new one
        config.trainer.max_actor_ckpt_to_keep = kept
        assert estimate(config, SOLD_AS[80]).checkpoints == at_once


def test_a_run_that_goes_on_needs_room_for_what_it_has_yet_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "free_disk", lambda folder: 60e9)
    config = recipe("1.5B Megatron", "trainer.total_training_steps=4", "trainer.save_freq=1")
    config.trainer.default_local_dir = str(tmp_path)
    (finding,) = resources.check_disk(config)
    assert "4 checkpoints of 25 GB need 100 GB" in finding.what
    assert finding.fix.endswith("trainer.max_actor_ckpt_to_keep=2")
    (tmp_path / "global_step_1").mkdir()  # of which verl has deleted the actor
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)
    assert list(resources.check_disk(config)) == []
    for free in (10e9, 30e9):  # for none, and for one, to which verl adds the next before it deletes it
        monkeypatch.setattr(resources, "free_disk", lambda folder, free=free: free)
        (finding,) = resources.check_disk(config)
        assert "2 checkpoints of 25 GB need 50 GB" in finding.what and "max_actor_ckpt_to_keep" not in finding.fix
    monkeypatch.setattr(resources, "free_disk", lambda folder: 10e9)
    for step, left in ((3, 1), (4, 0), (5, 0)):
        (tmp_path / f"global_step_{step}" / "actor").mkdir(parents=True)
        assert checkpoints_after(config, step) == left and len(list(resources.check_disk(config))) == left


def test_what_is_offloaded_has_to_fit_the_memory_of_the_node(monkeypatch):
    total = psutil.virtual_memory().total
    monkeypatch.setattr(resources, "gpus_here", lambda: [SOLD_AS[80]])
    found = []
    for host in (0.99 * total, 2 * total):
        needs = Estimate("model", 1, "FSDP2", 4, (), 0.0, host, 0.0, 0, "")
        monkeypatch.setattr(resources, "estimate", lambda *_, needs=needs: needs)
        found.append([finding.what for finding in resources.check_memory(recipe("1.5B FSDP2"))])
    memory = f"{total / GIB:.0f} GiB of memory"
    assert found == [[], [f"offloading puts about {2 * total / GIB:.0f} GiB into this node's {memory}"]]


def test_the_number_of_checkpoints_follows_from_the_rows_of_the_data(tmp_path, monkeypatch):
    pq.write_table(pa.table({"prompt": [""] * 100}), tmp_path / "train.parquet")
    changes = ("total_training_steps=null", "total_epochs=3", "save_freq=5", "max_actor_ckpt_to_keep=null")
    settings = [f"trainer.{change}" for change in changes] + ["data.train_batch_size=8"]
    config = recipe("1.5B Megatron", *settings, f"data.train_files={tmp_path / 'train.parquet'}")
    assert checkpoints_after(config, 0) == 8  # 3 x 12 steps
    monkeypatch.setattr(resources, "free_disk", lambda folder: 60e9)
    (finding,) = resources.check_disk(config)
    assert "8 checkpoints of 25 GB" in finding.what and not finding.fatal  # some rows may be dropped
    config.trainer.max_actor_ckpt_to_keep = 3
    (finding,) = resources.check_disk(config)
    assert "3 checkpoints of 25 GB" in finding.what and finding.fatal  # which there will be, however many are dropped
    config.trainer.max_actor_ckpt_to_keep = None
    config.data.train_max_samples = 40
    assert checkpoints_after(config, 0) == 3  # 3 x 5 steps
    config.data.train_files = str(tmp_path / "missing.parquet")
    assert checkpoints_after(config, 0) == 1


@pytest.mark.parametrize(
    ("dynamic", "fixes"),
    [
        ("use_dynamic_bsz=True", ["log_prob_max_token_len_per_gpu=5000", "ppo_max_token_len_per_gpu=5000"]),
        ("use_dynamic_bsz=False", ["log_prob_micro_batch_size_per_gpu=2", "ppo_micro_batch_size_per_gpu=3"]),
    ],
)
def test_the_fix_is_a_setting_that_verl_reads(dynamic, fixes):
    """A stage that needs twice the room there is gets half of the micro-batch: by tokens, or by responses."""
    config = recipe(
        "1.5B FSDP2", f"{A}.actor.{dynamic}", f"{A}.rollout.log_prob_{dynamic}", f"{A}.actor.strategy=fsdp2",
        f"{A}.actor.ppo_max_token_len_per_gpu=10000", f"{A}.rollout.log_prob_max_token_len_per_gpu=10000",
        f"{A}.actor.ppo_micro_batch_size_per_gpu=6", f"{A}.rollout.log_prob_micro_batch_size_per_gpu=4",
        f"{A}.actor.entropy_from_logits_with_chunking=True",
    )  # fmt: skip
    stages = tuple(Stage(name, {"activations": 2 * ROOM * SOLD_AS[80] * GIB}) for name in ("log-probs", "training"))
    needs = Estimate("model", 1, "FSDP2", 4, stages, 0.0, 0.0, 0.0, 0, "")

    def advised() -> list[str]:
        return [finding.fix for finding in resources.compare(config, needs, SOLD_AS[80], "")]

    assert [fix.rpartition(".")[2] for fix in advised()] == fixes
    if "=False" in dynamic:
        config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 9  # 4 responses would fit, and 9 are no multiple
        assert advised()[-1].endswith("ppo_micro_batch_size_per_gpu=3")
        config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 2
        config.actor_rollout_ref.actor.policy_loss.loss_mode = "cw_grpo"  # for which one response is too few
        assert advised()[-1].endswith("offload_policy=True")
    # Where not even one response would fit:
    config.data.max_response_length = 9000
    config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 1
    offload = f"{A}.actor.fsdp_config.offload_policy=True"
    assert advised()[-1] == offload
    config.actor_rollout_ref.actor.strategy = "fsdp"
    assert advised()[-1] == f"{A}.actor.strategy=fsdp2 {A}.actor.fsdp_config.strategy=fsdp2 {offload}"


def test_fsdp1_does_not_read_the_policy_that_offloads(monkeypatch):
    config = recipe("1.5B FSDP2", f"{A}.actor.fsdp_config.offload_policy=True")
    monkeypatch.setattr(tracked, "fsdp2_training", lambda *_: {"weights": 1.0, "gradients": 2.0, "optimizer": 4.0})
    monkeypatch.setattr(tracked, "fsdp2_log_probs", lambda *_: {"weights": 1.0})
    held = []
    for config.actor_rollout_ref.actor.strategy in ("fsdp2", "fsdp"):
        needs = estimate(config, SOLD_AS[80])
        (training,) = [stage for stage in needs.stages if stage.name == "training"]
        held.append((needs.engine, training.parts["weights"], training.parts["optimizer"]))
    assert held == [("FSDP2", 0.0, 0.0), ("FSDP1 (calculated as FSDP2)", 1.0, 4.0)]


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
    result = cli("memory", script, f"{A}.rollout.gpu_memory_utilization=0.2")
    assert result.exit_code == 1 and "it needs about 17 for its weights alone" in result.stdout
    result = cli("memory", script, f"{A}.actor.megatron.context_parallel_size=8")
    assert result.exit_code == 2 and "and CP=8 need 16 GPUs, and the run has 4; lower them" in result.stderr
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
        cause = "attn_implementation=flash_attention_2" if package == "flash-attn" else "model_engine=megatron"
        assert f"is not installed, and {cause}" in finding.what
        assert finding.fix == f"install {package} as {environment.PAGE} says" and (ROOT / environment.PAGE).exists()
    assert list(environment.check_missing_packages(recipe(name, "trainer.device=cpu"))) == []
    sdpa = recipe(name, f"{A}.model.override_config.attn_implementation=sdpa")
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
    found = list(environment.check_missing_packages(recipe("1.5B FSDP2", setting)))
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
    found = [finding.what for finding in environment.check_missing_packages(recipe("1.5B Megatron"))]
    assert [what.split()[0] for what in found] == ["megatron.core", "megatron.bridge", "flash_attn"]

    class Editable:
        """As pip installs megatron.core from a clone: a finder of its own knows where it lies."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            return spec_from_file_location(name, tmp_path / "elsewhere.py") if name == "megatron.core" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    found = [finding.what for finding in environment.check_missing_packages(recipe("1.5B Megatron"))]
    assert [what.split()[0] for what in found] == ["megatron.bridge", "flash_attn"]


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    needed = {"flash_attn": "flash-attn", "ray": "ray"}
    monkeypatch.setattr(environment, "needed", lambda config: {"not_there": "not-there", **needed})
    missing, finding = environment.check_packages(recipe("1.5B FSDP2"))
    assert missing.what == "not_there is not installed, and verl's trainer imports it"
    assert "flash_attn is installed and cannot be imported (ImportError: built for another torch)" in finding.what
