"""OpenRLHF's train_ppo_ray from start to end on a CPU: Ray, DeepSpeed in two processes, a vLLM engine.

Its environment is that of examples/openrlhf/quickstart_cpu.sh.
"""

import pytest

pytest.importorskip("verl")

import os
import subprocess
from pathlib import Path

from interpreter import ROOT
from probe_files import saved
from witnesses import check_weights, environment, kill_and_resume, start

SAMPLES = 8

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(request) -> str:
    return environment(request, "openrlhf")


def train(path: str, folder: Path, *flags: str) -> subprocess.Popen:
    """Three prompts with eight responses each are 24 rows in six experiences, three for each of two actors."""
    settings = f"""
--actor.model_name_or_path {ROOT}/examples/cpu/model --actor.num_nodes 1 --actor.num_gpus_per_node 2
--actor.adam.lr 1e-3 --actor.lr_warmup_ratio 0 --algo.advantage.estimator group_norm --algo.kl.init_coef 0
--ckpt.output_dir {folder} --ckpt.path {folder}/checkpoints --logger.tensorboard_dir {folder}/tensorboard
--data.prompt_dataset {os.environ["QUICKSTART_DATA"]}/open_rs/train.parquet --data.input_key prompt
--data.label_key reward_model --data.max_len 256 --data.max_samples 15 --data.apply_chat_template
--reward.remote_url {ROOT}/cw_plugin/lab/rewards/openrlhf.py --rollout.batch_size 3
--rollout.n_samples_per_prompt {SAMPLES} --rollout.micro_batch_size 4 --rollout.max_new_tokens 64
--train.batch_size 24 --train.micro_batch_size 4 --train.async_enable --ds.attn_implementation sdpa
--vllm.num_engines 1 --vllm.gpu_memory_utilization 0.3 --vllm.enforce_eager
"""
    return start("openrlhf", path, folder, "openrlhf_probe", settings, *flags)


def test_two_actors_train_asynchronously_and_a_killed_run_goes_on(path, tmp_path):
    latest = tmp_path / "checkpoints" / "_actor" / "latest"
    first = train(path, tmp_path, "--ckpt.save_steps", "1")
    reached = kill_and_resume(
        tmp_path,
        first,
        resume=lambda: train(path, tmp_path, "--ckpt.save_steps", "1", "--ckpt.load_enable"),
        saved=lambda: int(latest.read_text().removeprefix("global_step") or 0) if latest.exists() else 0,
    )
    assert len(saved(tmp_path, "maker")) == 5 - reached
    assert check_weights(saved(tmp_path, "maker"), saved(tmp_path, "loss"), SAMPLES, epsilon=1e-9) > 0
