"""cw-grpo doctor: each fault is planted, and seen; a run without faults gets no finding."""

import pytest

pytest.importorskip("verl")

import inspect
import json
import os
import re
import shutil
import socket
import sys
from typing import get_args
from unittest.mock import Mock

import numpy as np
import torch
from doctor_runs import ENV, LOSS, REWARD, A, changed
from interpreter import ROOT, bash, cli, python
from omegaconf import DictConfig, OmegaConf
from ray.cluster_utils import Cluster
from typer.testing import CliRunner
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY, kl_penalty
from verl.utils import config as verl_config

from cw_plugin.hosts.verl import hooks
from cw_plugin.hosts.verl.refused_settings import ONE_FOR_A_RESPONSE, ONE_WITHOUT_KL
from cw_plugin.lab import doctor
from cw_plugin.lab.cli import app
from cw_plugin.lab.compose import compose, read_configuration
from cw_plugin.lab.doctor import workers
from cw_plugin.lab.doctor.environment import failure_of
from cw_plugin.lab.doctor.finding import Finding
from cw_plugin.lab.doctor.names import KL_PENALTIES, OF_VLLM

README = ROOT / "README.md"  # a file, and no folder
OF_REFERENCE = [f"{A}.actor.use_kl_loss=True", f"{A}.ref.log_prob_micro_batch_size_per_gpu=5"]
KL = "algorithm.use_kl_in_reward=True"
METRICS = f"{ENV}.VERL_FILE_LOGGER_PATH"
CONTENTS, LOADED = (f"{A}.actor.checkpoint.{name}_contents" for name in ("save", "load"))
ATTENTION = f"{A}.model.override_config.attn_implementation"
POSITIONS = f"{A}.model.override_config.max_position_embeddings"
RESUME, CHECKPOINT = "trainer.resume_mode=resume_path", "trainer.resume_from_path"
MANAGER, BUILTINS = "reward.reward_manager", "pkg://builtins"
ASYNC = "verl.experimental.fully_async_policy.fully_async_main"
ASYNC_CONFIG = "experimental/fully_async_policy/config"
FILES = {  # neither a program of verl nor a configuration of it
    "no_hydra.py": "",
    "computed.py": "@hydra.main(config_path=os.path.join('a', 'config'), config_name=NAME)\ndef main(config): ...",
    "no_keywords.py": "@hydra.main('pkg://verl.trainer.config', 'ppo_trainer', None)\ndef main(config): ...",
    "empty.yaml": "",
    "options.yaml": "--actor.num_nodes\n1\n",
    "log.yaml": "Loading module: cuda: ok\nalgorithm:\n",
    "open.yaml": "actor_rollout_ref: ${gone}\n",
}


def examined(config: DictConfig, *checks: str) -> list[Finding]:
    return [finding for _, finding in doctor.examine(config, {name: doctor.CHECKS[name] for name in checks})]


def test_a_plain_run_gets_no_finding(composed):
    """test_verl_releases.py runs it with earlier releases of verl, too."""
    assert doctor.examine(composed, doctor.CHECKS) == []


def test_a_run_without_faults_gets_no_finding(overrides, composed, tmp_path):
    at_top = "++custom_reward_function.path=my.py"  # which fully_async_policy moves
    asynchronous = ["data.train_batch_size=0", f"{A}.rollout.checkpoint_engine.backend=naive", at_top]
    hybrid = examined(compose(["-m", ASYNC, *overrides, *asynchronous]), "verl")
    assert ["hybrid_engine=True, which" in finding.what and finding.fatal for finding in hybrid] == [True]
    asynchronous.append(f"{A}.hybrid_engine=False")
    files = f"data.val_files=[{composed.data.val_files},hdfs://host/test.parquet]"
    for config in (
        compose(["-m", ASYNC, *overrides, *asynchronous]),
        changed(composed, files, f"{A}.model.path=hdfs://host/model"),  # verl copies what is elsewhere
    ):
        assert doctor.examine(config, doctor.CHECKS) == []
    checks = doctor.QUICK | {name: doctor.CHECKS[name] for name in ("metrics", "names")}
    # Eight GPUs that hold one copy of the model, which gets all 32 responses.
    sizes = [f"{name}_parallel_size=2" for name in ("tensor_model", "pipeline_model", "context")]
    parallel = [f"{A}.actor.megatron.{size}" for size in sizes]
    parallel += ["trainer.n_gpus_per_node=8", f"{A}.actor.ppo_micro_batch_size_per_gpu=32"]
    assert doctor.examine(compose([*overrides, "model_engine=megatron", *parallel]), checks) == []
    usual = [f"{A}.model.path=Qwen/Qwen2.5-Math-7B", f"{LOSS}=gspo", "trainer.logger=[console,wandb]"]
    usual += [f"{METRICS}={__file__}", f"{A}.actor.use_kl_loss=${{algorithm.use_kl_in_reward}}"]
    with_values = ["algorithm.adv_estimator=gae", f"{LOSS}=cw_grpo", f"{A}.actor.ppo_micro_batch_size_per_gpu=1"]
    correction = "algorithm.rollout_correction"
    (tmp_path / "global_step_2").mkdir()
    checkpoint = f"{CHECKPOINT}={tmp_path}/global_step_2"
    named = ["trainer.logger=[tracking,file]", f"{METRICS}={tmp_path}/no-such.jsonl", RESUME, checkpoint]
    named += [f"{ATTENTION}=eager"]
    named += [KL, "algorithm.kl_ctrl.type=adaptive", f"{correction}.rollout_is=sequence"]
    named += [f"{correction}.rollout_rs='token_k1,seq_sum_k1,'", "trainer.v1.sampler.max_off_policy_strategy=wait"]
    bypass = [f"{correction}.bypass_mode=True", f"{correction}.loss_type=reinforce"]
    batch = [f"{A}.rollout.n=1", "algorithm.cw_grpo.scope=batch", f"{ATTENTION}=kernels-community/flash-attn"]
    batch += [f"trainer.default_local_dir={README}"]  # to which nothing is saved
    written = ["trainer.save_freq=1", f"trainer.default_local_dir={tmp_path}/new/run", "trainer.rollout_data_dir=new"]
    names = [f"{A}.rollout.dtype=half", f"{A}.actor.strategy=fsdp2", "trainer.val_only=True"]
    validated = [f"{A}.rollout.val_kwargs.{name}" for name in ("n=4", "temperature=1")]
    validated += ["trainer.val_before_train=False"]
    two_nodes = ["trainer.nnodes=2", f"{A}.rollout.tensor_model_parallel_size=4"]
    # Log-probs are computed of the whole batch, here of two mini-batches.
    updates = [f"{A}.actor.ppo_mini_batch_size=4", KL]
    updates += [f"{A}.{role}.log_prob_micro_batch_size_per_gpu=16" for role in ("rollout", "ref")]
    dynamic = [f"{A}.actor.use_dynamic_bsz=True", f"{A}.rollout.log_prob_use_dynamic_bsz=True"]
    dynamic += [f"{A}.actor.ppo_micro_batch_size_per_gpu=3"]  # which verl does not use
    other = [f"{A}.rollout.name=sglang", f"{A}.rollout.dtype=fp8", "global_profiler.tool=none"]  # which are not asked
    bypass += [f"{A}.rollout.log_prob_micro_batch_size_per_gpu=7"]  # which is not asked
    sharded = ["trainer.n_gpus_per_node=8", f"{A}.actor.fsdp_config.ulysses_sequence_parallel_size=4"]
    sharded += [f"{A}.rollout.n=5", f"{A}.actor.ppo_mini_batch_size=4", f"{A}.actor.ppo_micro_batch_size_per_gpu=5"]
    sharded += [f"{A}.rollout.log_prob_micro_batch_size_per_gpu=5"]
    of_sizes = (sharded, two_nodes, updates, dynamic)
    for unusual in (usual, with_values, named, bypass, batch, written, names, validated, other, *of_sizes):
        assert doctor.examine(changed(composed, *unusual), checks) == []
    ((_, finding),) = doctor.examine(changed(composed, *named, f"{checkpoint}/"), checks)
    assert "global_step_2/ is no folder of a checkpoint" in finding.what  # of the step "2/"
    assert examined(changed(composed, f"{POSITIONS}=4096", f"{A}.rollout.max_model_len=4096"), "lengths") == []


@pytest.mark.parametrize(
    ("fault", "check", "what", "fix", "fatal"),
    [
        ([f"{LOSS}=cw_grpo"], "method", "reweight every token twice", "loss_mode=vanilla", True),
        (["algorithm.adv_estimator=grpo"], "method", "this run is not CW-GRPO", "adv_estimator=cw_grpo", False),
        ([f"{LOSS}=ppo"], "names", f"{LOSS}=ppo: verl has no such name", "vanilla, ", True),
        (["algorithm.adv_estimator=cwgrpo"], "names", "=cwgrpo: verl has no such name", "cw_grpo", True),
        ([f"{A}.rollout.name=hf"], "names", "rollout.name=hf: verl has", "vllm, sglang", True),
        ([f"{CONTENTS}=[model,optimzer]", f"{LOADED}=[model]"], "names", "contents=optimzer: verl", "hf_model", True),
        (["trainer.logger=[file,tensorbord]"], "names", "logger=tensorbord: verl has", "tensorboard, ", True),
        ([f"{A}.actor.optim.lr_scheduler_type=linear"], "verl", "assert self.lr_scheduler_type in", "verl names", True),
        ([f"{A}.rollout.expert_parallel_size=4"], "verl", "expert_parallel_size must be equal", "verl names", True),
        ([f"{A}.rollout.log_prob_use_dynamic_bsz=Flase"], "switches", "=Flase is text", "dynamic_bsz=True", True),
        (["trainer.test_freq=None"], "switches", "trainer.test_freq=None is a text", "trainer.test_freq=null", True),
        ([f"{A}.actor.use_kl_loss=True"], "verl", "settings: [actor_rollout_ref.ref] Please set", "verl names", True),
        (["sandbox_fusion.url=http://host"], "ignored", "top level", "reward.sandbox_fusion.url=http", True),
        (["reward_model.enable=True"], "ignored", "top level", "reward.reward_model.enable=True", True),
        (["reward_model.reward_manager=dapo"], "ignored", "top level", "reward.reward_manager.name=dapo", True),
        (["reward_model.reward_kwargs.a=1"], "ignored", "top level", "reward.reward_kwargs.a=1", True),
        ([f"{A}.actor.clip_ratio=0.1"], "ignored", "clip_ratio=0.1 does nothing", "clip_ratio_high=0.1", False),
        ([f"{A}.rollout.val_kwargs.n=4"], "schedule", "answers to a prompt are the same", "temperature=0.6", False),
        (["trainer.critic_warmup=5"], "schedule", "critic_warmup=5: until then", "critic_warmup=0", False),
        ([f"{A}.rollout.tensor_model_parallel_size=4"], "sizes", "= 4 GPU(s), which do not divide", "of 2>", True),
        ([f"{A}.rollout.data_parallel_size=2"], "sizes", "= 4 GPU(s), which do not divide", "of 2>", True),
        ([f"{A}.rollout.n=5", f"{A}.actor.ppo_mini_batch_size=1"], "sizes", "= 5 response(s)", "multiple of 2>", True),
        ([f"{A}.actor.ulysses_sequence_parallel_size=4"], "sizes", "need 4 GPU(s), which", "other", True),
        ([f"{A}.actor.fsdp_config.ulysses_sequence_parallel_size=4"], "sizes", "need 4 GPU(s), which", "other", True),
        ([f"{A}.actor.ppo_micro_batch_size_per_gpu=3"], "sizes", "_gpu=3 does not divide the 16", "of 16>", True),
        ([f"{A}.rollout.log_prob_micro_batch_size_per_gpu=5"], "sizes", "=5 does not divide the 16", "divisor", True),
        ([*OF_REFERENCE, f"{A}.actor.use_kl_loss=False", KL], "sizes", "ref.log_prob", "of 16>", True),
        (OF_REFERENCE, "sizes", "ref.log_prob_micro_batch_size_per_gpu=5 does not divide the 16", "of 16>", True),
        ([f"{A}.rollout.log_prob_use_dynamic_bsz=True"], "sizes", "use_dynamic_bsz=True", "both", True),
        (["trainer.val_only=True", "trainer.val_before_train=False"], "ignored", "verl trains", "before_train=T", True),
        (["data.train_batch_size=12"], "aggregation", "adds empty responses", "size=8", False),
        ([f"{A}.actor.loss_agg_mode=token-mean"], "aggregation", "token-mean", "seq-mean-token-mean", False),
        (["trainer.logger=console"], "metrics", "will not find", "trainer.logger=[console,file]", False),
        ([], "metrics", "exists, and main_ppo", "test_doctor.1.jsonl", False),  # as the environment names it
        ([f"{METRICS}=/no/such/m.jsonl"], "metrics", "verl makes no folder", "mkdir -p /no/such", True),
        ([f"{REWARD}.path=pkg://no_module"], "verl", "no_module", "the setting that the error names", True),
        ([f"{A}.rollout.max_model_len=100"], "lengths", "= 192: vLLM cuts", "a sum of 100", True),
        ([f"{A}.rollout.max_model_len=null", "data.max_response_length=2000"], "lengths", "than 2048", "of 2048", True),
        ([f"{A}.model.path=no-such-model"], "lengths", "OSError", "the setting that the error names", True),
        ([f"{A}.rollout.max_model_len=4000"], "lengths", "=4000: the model has 2048 positions", "or null", True),
        ([f"{POSITIONS.replace('config.', 'config.model_config.')}=191"], "lengths", "longer than 191", "of 191", True),
        ([f"{POSITIONS}=191"], "lengths", "= 192: vLLM cuts", "a sum of 191", True),
        ([f"{A}.model.custom_chat_template=/a.jinja"], "files", "=/a.jinja is no template", "in place of its", True),
        ([f"{CHECKPOINT}=/a"], "files", "=/a does nothing with resume_mode=auto", "=resume_path", False),
        (["trainer.experiment_name=None"], "switches", "experiment_name=None is a text", "experiment_name=null", False),
        ([f"{METRICS}=~/m/m.jsonl"], "metrics", "verl makes no folder", "expands neither ~ nor", True),
        ([f"{METRICS}={ROOT}"], "metrics", "is no file that verl can write", "name a file in it", True),
        ([f"{A}.model.path=no/such/model"], "files", "no/such/model does not exist", "give a folder", True),
        ([f"{A}.model.path=examples/no-such"], "files", "examples/no-such does not exist", "give a folder", True),
        ([f"{A}.model.hf_config_path=~/no-such"], "files", "=~/no-such does not exist", "expands neither ~ nor", True),
        ([f"{A}.model.path=$HOME/no-such"], "files", "=$HOME/no-such does not exist", "expands neither ~ nor", True),
        (["reward.reward_model.enable=True", "reward.reward_model.model_path=/a"], "files", "=/a does", "folder", True),
        (["data.val_files=null"], "files", "data.val_files names no file", "data.val_files=", True),
        ([f"{A}.model.lora_adapter_path=/no/such"], "files", "adapter_path=/no/such does not", "give a folder", True),
        ([RESUME], "files", "path=None is no folder of a checkpoint", "global_step_N", True),
        ([RESUME, f"{CHECKPOINT}=/no/global_step_2"], "files", "=/no/global_step_2 is no folder of", "_step_N", True),
        ([RESUME, f"{CHECKPOINT}={ROOT}"], "files", "is no", "_step_N", True),
        (["trainer.default_local_dir=~/run"], "files", "default_local_dir=~/run: verl would take", "neither ~", False),
        (["trainer.default_hdfs_dir=$HOME/run"], "files", "hdfs_dir=$HOME/run: verl would take", "/run; verl", False),
        ([f"trainer.rollout_data_dir={README}/a"], "files", "a is no folder that this", "another folder", True),
        (["trainer.save_freq=1", f"trainer.default_local_dir={README}"], "files", "no folder that", "another", True),
        ([f"{A}.model.tokenizer_path={ROOT}/tests"], "datasets", "model's configuration or tokenizer", "_path", True),
        ([f"{A}.model.tokenizer_path={ROOT}/"], "files", "ends with /, which verl refuses", f"path={ROOT}", True),
    ],
)
def test_a_planted_fault_is_named(composed, monkeypatch, fault, check, what, fix, fatal):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", __file__)
    monkeypatch.chdir(ROOT)
    findings = examined(changed(composed, *fault), check)
    assert len({found.what.replace("val_files", "train_files") for found in findings}) == 1  # both files are one
    assert findings[0].fatal is fatal and what in findings[0].what and fix in findings[0].fix


def test_the_positions_of_a_model_with_code_of_its_own(composed, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    settings = {"auto_map": {"AutoConfig": "mine.Mine"}, "text_config": {"max_position_embeddings": 100}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "mine.py").write_text(
        "from transformers import PretrainedConfig, Qwen2Config\n"
        "class Mine(PretrainedConfig):\n"
        "    def get_text_config(self): return Qwen2Config(**self.text_config)\n"
    )
    for setting in ("path", "hf_config_path"):  # the latter counts, where both are given
        mine = changed(composed, f"{A}.model.{setting}={tmp_path}", f"{A}.model.trust_remote_code=True")
        (finding,) = examined(mine, "lengths")
        assert "vLLM cuts what is longer than 100" in finding.what


ALWAYS_LOOKED_UP = f"""
{ATTENTION} trainer.resume_mode {A}.rollout.agent.default_agent_loop {A}.rollout.checkpoint_engine.backend
{A}.rollout.multi_turn.tool_response_truncate_side {A}.actor.checkpoint.load_contents data.custom_cls.path
trainer.v1.sampler.custom_sampler.path {A}.actor.strategy {A}.rollout.dtype {A}.rollout.logprobs_mode
{A}.rollout.scheduling_policy {A}.rollout.trace.backend {A}.actor.fsdp_config.mixed_precision.param_dtype
{A}.ref.fsdp_config.model_dtype {A}.actor.optim.optimizer algorithm.rollout_correction.rollout_is
algorithm.rollout_correction.rollout_rs trainer.checkpoint_callback_class {A}.rollout.agent.agent_loop_manager_class
{A}.rollout.multi_turn.tool_config_path {A}.rollout.router_config_path {A}.actor.fsdp_config.model_dtype
{A}.rollout.multi_turn.function_tool_path {A}.actor.fsdp_config.mixed_precision.reduce_dtype
{A}.actor.fsdp_config.mixed_precision.buffer_dtype {A}.rollout.checkpoint_manager_class {A}.rollout.multi_turn.format
""".split()


@pytest.mark.parametrize(
    ("setting", "if_used"),
    [
        *((setting, []) for setting in ALWAYS_LOOKED_UP),
        ("trainer.v1.trainer_mode", ["trainer.use_v1=True"]),
        ("trainer.v1.sampler.max_off_policy_strategy", ["trainer.use_v1=True"]),
        (f"{MANAGER}.name", [f"{MANAGER}.source=register"]),
        (
            f"{MANAGER}.name",
            [f"{MANAGER}.source=importlib", f"{MANAGER}.name=max", f"{MANAGER}.module.path={BUILTINS}"],
        ),
        ("reward.reward_model.rollout.name", ["reward.reward_model.enable=True"]),
        ("distillation.distillation_loss.loss_mode", ["distillation.enabled=True"]),
        (f"{A}.model.fused_kernel_options.impl_backend", [f"{A}.model.use_fused_kernels=True"]),
        ("global_profiler.tool", ["global_profiler.steps=[1]"]),
        (f"{A}.actor.kl_loss_type", [f"{A}.actor.use_kl_loss=True"]),
        ("algorithm.kl_penalty", [KL]),
        ("algorithm.kl_ctrl.type", [KL]),
        ("algorithm.rollout_correction.loss_type", ["algorithm.rollout_correction.bypass_mode=True"]),
        ("async_training.dynamic_schedule_policy", ["async_training.use_dynamic_resource_scheduling=True"]),
    ],
)
def test_a_name_that_verl_looks_up_late_is_named(composed, setting, if_used):
    assert examined(changed(composed, *if_used), "names") == []
    before = "/" if setting.endswith("_path") else "token_k1," if setting.endswith("rollout_rs") else ""
    (finding,) = examined(changed(composed, *if_used, f"{setting}={before}qwen.qwen"), "names")
    assert finding.fatal and finding.what.startswith(setting.removesuffix(".path")) and "qwen.qwen" in finding.what
    if if_used and setting != f"{MANAGER}.name":  # which verl always looks up
        assert examined(changed(composed, "trainer.use_v1=False", f"{setting}=qwen.qwen"), "names") == []


def test_tools_and_agent_loops_of_a_file_are_loaded(composed, tmp_path):
    (tmp_path / "tools.yaml").write_text("tools:\n- class_name: no_module.Tool\n  config: {type: native}\n")
    (tmp_path / "loops.yaml").write_text("- name: mine\n  _target_: no_module.Loop\n")
    (tmp_path / "functions.py").write_text("import no_module\n")
    for setting, file in (
        ("multi_turn.tool_config_path", "tools.yaml"),
        ("agent.agent_loop_config_path", "loops.yaml"),
        ("multi_turn.function_tool_path", "functions.py"),
    ):
        (finding,) = examined(changed(composed, f"{A}.rollout.{setting}={tmp_path / file}"), "names")
        assert setting in finding.what and "no_module" in finding.what and finding.fatal
    (tmp_path / "tools.yaml").write_text("tools:\n- class_name: verl.tools.base_tool.BaseTool\n  config: {type: mcp}\n")
    tools = f"{A}.rollout.multi_turn.tool_config_path={tmp_path}/tools.yaml"
    (finding,) = examined(changed(composed, tools), "names")
    assert "'mcp' is not a valid ToolType" in finding.what
    (tmp_path / "tools.yaml").write_text("tools: []\n")
    unused = examined(changed(composed, tools), "datasets")
    assert ["does nothing with agent.default" in finding.what for finding in unused] == [True, True]  # of both files
    assert examined(changed(composed, tools, f"{A}.rollout.agent.default_agent_loop=tool_agent"), "datasets") == []


FOUR = "data_source, solution_str, ground_truth, extra_info"


@pytest.mark.parametrize(
    ("code", "settings", "said"),
    [
        (f"def compute_score({FOUR}): ...", [], None),
        ("async def compute_score(**given): ...", [f"+{REWARD}.reward_kwargs.a=1"], None),
        ("def compute_score(data_source, solution_str, ground_truth): ...", [], "keyword argument 'extra_info'"),
        (f"def compute_score({FOUR}): ...", [f"{REWARD}.reward_kwargs.a=1"], "unexpected keyword argument 'a'"),
        (f"def compute_score({FOUR}, b): ...", [], "missing a required argument: 'b'"),
        (f"def compute_score({FOUR}): ...", ["reward.reward_model.enable=True"], "argument 'reward_router_address'"),
        ("compute_score = 5", [], "is not a callable object"),
        ("def compute_score(): ...", ["reward.reward_manager.source=importlib"], None),  # which may call otherwise
    ],
)
def test_a_reward_that_cannot_be_called_as_verl_does(composed, tmp_path, code, settings, said):
    (tmp_path / "mine.py").write_text(code)
    findings = examined(changed(composed, f"{REWARD}.path={tmp_path / 'mine.py'}", *settings), "verl")
    assert [finding.fatal and said in finding.what for finding in findings] == ([] if said is None else [True])


def test_a_model_without_its_weights(composed, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(f"{ROOT}/examples/cpu/model", model)
    (weights,) = model.glob("*.safetensors")
    settings = changed(composed, f"{A}.model.path={model}")
    assert examined(settings, "files") == []
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": weights.name, "b": "second.safetensors"}}))
    missing = examined(settings, "files")
    index.unlink()
    weights.rename(model / "pytorch_model.bin")
    assert examined(settings, "files") == []
    (model / "pytorch_model.bin").unlink()
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    pointer = examined(settings, "files")
    weights.unlink()
    for findings in (missing, pointer, examined(settings, "files")):
        assert ["has no weights" in finding.what and finding.fatal for finding in findings] == [True]
    elsewhere = changed(settings, f"{A}.actor.megatron.use_dist_checkpointing=True")
    assert examined(elsewhere, "files") == []


def test_a_folder_that_cannot_be_written_to(composed, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    (finding,) = examined(changed(composed, f"trainer.rollout_data_dir={tmp_path}"), "files")
    assert "is no folder that this process can write to" in finding.what


def test_the_names_of_kl_penalties_are_verls():
    for name in KL_PENALTIES:
        kl_penalty(torch.zeros(1), torch.zeros(1), name)
    for name in ("qwen", "full"):
        with pytest.raises(NotImplementedError):
            kl_penalty(torch.zeros(1), torch.zeros(1), name)


def test_the_names_of_vllm_are_its_own():
    model, scheduler = (pytest.importorskip(f"vllm.config.{name}") for name in ("model", "scheduler"))
    literals = [model.ModelDType, model.LogprobsMode, scheduler.SchedulerPolicy]
    assert list(OF_VLLM.values()) == [list(get_args(literal)) for literal in literals]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("my_library", f"{A}.model.external_lib="),
        ("my_backend", f"{A}.rollout.checkpoint_engine.custom_backend_module="),
        ("my_reward", f"{REWARD}.path=pkg://"),
    ],
)
def test_names_of_the_users_own_code_are_known(composed, tmp_path, monkeypatch, name, setting):
    (tmp_path / f"{name}.py").write_text(
        "from verl.trainer.ppo.core_algos import register_policy_loss\n"
        f"@register_policy_loss('{name}')\ndef compute_score(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert examined(changed(composed, f"{LOSS}={name}", f"{setting}{name}"), "names") == []


def test_a_registry_that_a_release_of_verl_does_not_have_is_not_asked(composed, monkeypatch):
    monkeypatch.delattr("verl.utils.tracking.Tracking.supported_backend")
    assert examined(composed, "names") == []


def test_the_estimators_that_give_a_response_one_advantage_are_verls():
    """By each of its functions, on rewards of whole responses; for two estimators a KL penalty would be in them."""
    chance, lengths = torch.Generator().manual_seed(0), torch.tensor([9, 4, 6, 5, 7, 8])
    mask, rewards = (torch.arange(9) < lengths[:, None]).float(), torch.zeros(6, 9)
    rewards[range(6), lengths - 1] = torch.rand(6, generator=chance)
    of_tokens = {name: torch.rand(6, 9, generator=chance) for name in ("values", "old_log_probs", "sum_pi_squared")}
    given = {
        **{"token_level_rewards": rewards, "response_mask": mask, "index": np.array(list("aaabbb")), **of_tokens},
        **{"config": AlgoConfig(), "reward_baselines": torch.rand(6), "gamma": 1.0, "lam": 0.9},
    }
    one = set()
    for name, function in ADV_ESTIMATOR_REGISTRY.items():
        parameters = inspect.signature(function).parameters
        advantages, _ = function(**{key: value for key, value in given.items() if key in parameters})
        if torch.allclose(advantages, advantages[:, :1] * mask):
            one.add(str(getattr(name, "value", name)))
    assert one == {*ONE_FOR_A_RESPONSE, *ONE_WITHOUT_KL}


def test_what_is_printed(overrides, monkeypatch):
    """What is wrong comes first. A check that fails itself counts as wrong. What verl prints is left out."""

    def broken(config):
        yield Finding("it may be slow", "use a GPU", fatal=False)
        print("verl is loaded", file=sys.stderr)
        raise ValueError("no such thing")

    monkeypatch.setattr(doctor, "CHECKS", {"broken": broken} | doctor.CHECKS)
    result = cli("doctor", *overrides, f"{A}.rollout.n=1")
    assert result.exit_code == 1 and result.stderr.startswith("Loading verl") and result.stderr.count("\n") == 1
    first, _, wrong, fix, note, _, last = result.stdout.splitlines()
    assert first == "Wrong [broken] this check ended with ValueError: no such thing"
    assert wrong.startswith(f"Wrong [method] {A}.rollout.n=1") and fix.startswith("      fix: ")
    assert note == "Note [broken] it may be slow" and last == "2 wrong, 1 to note"
    result = cli("doctor", "--quick", *overrides, "algorithm.adv_estimator=grpo")  # which is only to note
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python3 -m verl.trainer.main_ppo +data.new=1 ~trainer.v1.sync GOOD", None),
        (f"python3 -m verl.trainer.main_ppo --config-path=../{ASYNC_CONFIG} -cn fully_async_ppo_trainer GOOD", None),
        (f"python3 -m verl.trainer.main_ppo -cn ppo_megatron_trainer {A}.actor.megatron.seed=1 GOOD", None),
        ("python3 -m verl.trainer.main_ppo --config-dir mine --config-name=my_trainer GOOD", None),
        (f"python3 -m {ASYNC} async_training.staleness_threshold=0.5 GOOD", None),
        (f"python3 -m {ASYNC} --config-path=config --config-name=fully_async_ppo_trainer.yaml GOOD", None),
        ("GOOD -m", None),  # hydra's -m
        ("python3 no_keywords.py GOOD", None),
        ("python3 computed.py --config-path=pkg://verl.trainer.config -cn ppo_trainer GOOD", None),
        ("python3 computed.py GOOD", "the config_path of computed.py is computed; give --config-path"),
        ("python3 computed.py --config-path=a GOOD", "the config_name of computed.py is computed; give --config-name"),
        ("python3 -m", "'python3' is not a hydra override"),
        ("python3 my.py GOOD", "my.py is not here; install it, or give a command of verl.trainer.main_ppo"),
        ("python3 no_hydra.py GOOD", "no_hydra.py has no hydra.main; give a command of verl.trainer.main_ppo"),
        (f"-m {ASYNC} async_training.stalenes_threshold=1 GOOD", "async_main has no setting async_training.stalenes_"),
        ("-m recipe.dapo.main_dapo GOOD", "the program recipe.dapo.main_dapo is not here; install it, or give"),
        ("-m verl.trainer.main_eval", "main_eval does not train with verl's trainer"),
        ("-m verl.trainer.main_ppo --config-name=gone GOOD", "in your config search path; give the whole command"),
        (f"GOOD {A}.rollout.temprature=1", f"{A}.rollout.temprature; did you mean {A}.rollout.temperature?"),
        ("GOOD model_engine=megatorn", "Could not find 'model_engine/megatorn'"),
        ("GOOD --quik", "unrecognized arguments: --quik; write KEY=VALUE"),
        ("GOOD rollout.nnodes=1", "main_ppo has no setting rollout.nnodes; give the whole command of fully_a"),
        ("GOOD data.train_files=/no/a.parquet", "train_files: /no/a.parquet does not exist; fix: cw-grpo prep"),
        ("GOOD data.train_batch_size=13", "has 12 row(s) for the run, fewer than a batch of 13"),
        ("GOOD algorithm.use_kl_in_reward=Ture", "algorithm.use_kl_in_reward=Ture is text, which verl reads as True"),
        ("GOOD ++custom_reward_function.path=my.py", "path=my.py stands at the top level"),
        ("GOOD ++ray_kwargs.ray_init.address=127.0.0.1:9", "would join, 127.0.0.1:9, does not answer"),
        ("GOOD +data.new=${gone}", "hydra refuses the overrides: Interpolation key 'gone' not found"),
        ("GOOD data.train_files=[a", "'data.train_files=[a' is not a hydra override; write KEY=VALUE"),
        ("GOOD --config=run.yaml", "--config run.yaml and 'algorithm.adv_estimator=cw_grpo' are given; give a"),
        ("--config gone.yaml", "gone.yaml cannot be read ([Errno 2] No such file"),
        ("--config empty.yaml", "holds no configuration of verl; give what cw-grpo config prints"),
        ("--config options.yaml", "holds no configuration of verl; give what cw-grpo config prints"),
        ("--config log.yaml", "cannot be read (mapping values are not allowed here)"),
        ("--config open.yaml", "cannot be read (Interpolation key 'gone' not found)"),
    ],
)
def test_a_command_is_taken_or_ends_in_one_sentence(overrides, tmp_path, monkeypatch, command, said):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_trainer.yaml").write_text("defaults:\n  - ppo_trainer\n  - _self_\n")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    before, good, after = command.partition("GOOD")
    result = cli("doctor", "--quick", *before.split(), *(overrides if good else []), *after.split())
    assert result.stdout == "" and len(result.stderr.splitlines()) == (0 if said is None else 1)
    assert result.exit_code == (0 if said is None else 2)
    assert said is None or (result.stderr.startswith("Error: ") and said in result.stderr)


def test_what_takes_long_is_said_before_it_begins(overrides, monkeypatch, capsys):
    said = []
    monkeypatch.setattr(doctor, "compose", lambda given: said.append(capsys.readouterr()) or compose(given))
    monkeypatch.setattr(doctor, "CHECKS", {})
    assert doctor.doctor(overrides) == 0
    ((out, error),) = said
    assert "about ten seconds" in error and out == "" and capsys.readouterr().out == "0 wrong, 0 to note\n"


def test_the_quick_check_loads_neither_torch_nor_verl_and_is_silent(overrides):
    code = (
        "import sys\n"
        "from cw_plugin.lab.doctor import doctor\n"
        "assert doctor(sys.argv[1:], quick=True) == 0\n"
        "assert not {'torch', 'verl', 'ray', 'pandas', 'sympy', 'math_verify', 'transformers'} & sys.modules.keys()\n"
    )
    result = python("-c", code, "-m", *overrides)  # hydra's -m
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_what_a_worker_runs_fails_if_its_verl_does_not_fit(composed, monkeypatch, tmp_path):
    """test_e2e_trainers.py runs the same code in Ray's workers, with the entry point and without."""
    (tmp_path / "verl.py").write_text("raise ImportError('half of it is missing')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    assert failure_of(workers.probe_of(composed)) == "ImportError: half of it is missing"


def test_a_verl_without_the_method_is_named(composed, monkeypatch):
    """In a new Ray, whose workers have this process' environment."""
    loss = ["algorithm.adv_estimator=grpo", f"{LOSS}=cw_grpo"]
    for registry, config in ((ADV_ESTIMATOR_REGISTRY, composed), (POLICY_LOSS_REGISTRY, changed(composed, *loss))):
        with monkeypatch.context() as patch:
            patch.delitem(registry, "cw_grpo")
            (finding,) = examined(config, "ray workers")
        assert finding.fatal and "verl finds no cw_grpo here" in finding.what
    monkeypatch.delattr(verl_config.validate_config, hooks._MARK)
    (finding,) = examined(composed, "ray workers")
    assert "validate_config is not hooked" in finding.what


def test_a_worker_on_each_living_node_is_asked(composed, monkeypatch):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        gone, _ = (cluster.add_node(num_cpus=1) for _ in range(2))
        cluster.remove_node(gone)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        monkeypatch.setattr(workers, "probe_of", lambda _: "import os\nraise ImportError(os.environ['RAY_RAYLET_PID'])")
        findings = list(workers.check_ray_workers(composed))
    finally:
        cluster.shutdown()
    assert len({re.search(r"ImportError: (\d+)", finding.what)[1] for finding in findings}) == len(findings) == 2


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_a_ray_cluster_that_does_not_answer(composed, monkeypatch, tmp_path, variable):
    for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))

    def at(address: str) -> DictConfig:
        return changed(composed, f"ray_kwargs.ray_init.address={address}")

    assert workers.find_cluster(composed) is None
    assert list(workers.check_ray_cluster(at("auto"))) == []  # Ray itself says at once that there is none
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        note = tmp_path / "ray" / "ray_current_cluster"  # which only `ray stop` removes
        note.parent.mkdir()
        note.write_text(address)
        for given in ("null", f"ray://{address}", "ray://head:client"):  # the last is Ray's to refuse
            assert list(workers.check_ray_cluster(at(given))) == []
    (finding,) = workers.check_ray_cluster(composed)
    assert finding.fatal and f"that this run would join, {address}, does not answer" in finding.what
    assert list(workers.check_ray_workers(composed)) == []  # said above; Ray itself waits for minutes
    assert list(workers.check_ray_cluster(at("local"))) == []
    for given in ("auto", "null"):  # with either, Ray joins the cluster that is noted
        assert workers.find_cluster(at(given)) == address
    for address in ("127.0.0.1:9", "[::1]:9"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        (finding,) = workers.check_ray_cluster(composed)
        assert f"{address}, does not answer" in finding.what
    connect = Mock()
    monkeypatch.setattr(socket, "create_connection", connect)
    assert list(workers.check_ray_cluster(composed)) == [] and connect.call_args.args[0] == ("::1", 9)
    assert connect.call_args.kwargs["timeout"] < 60  # as a connection that no one refuses would last for minutes


def test_a_script_starts_nothing_that_is_refused(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("study"))
    (tmp_path / "cw_plugin").symlink_to(ROOT / "cw_plugin")
    script = tmp_path / "examples" / "quickstart_cpu.sh"
    for name in ("install.sh", "data.sh"):  # the environment is this one
        (script.parent / "cpu" / name).write_text("")
    result = bash(str(script), f"{A}.rollout.n=1", code=2)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {A}.rollout.n=1 leaves one response in a prompt group")
    assert not (tmp_path / "runs").exists()


def test_a_whole_configuration_is_read_from_a_file_and_from_standard_input(composed, tmp_path, monkeypatch):
    text = OmegaConf.to_yaml(composed)
    (tmp_path / "config.yaml").write_text(text)  # as in hydra's folder, with interpolations
    assert read_configuration(str(tmp_path / "config.yaml")) == composed
    for config, code in ((text, 0), (OmegaConf.to_yaml(changed(composed, f"{A}.rollout.n=1")), 2)):
        assert CliRunner().invoke(app, ["doctor", "--quick", "--config", "-"], input=config).exit_code == code
