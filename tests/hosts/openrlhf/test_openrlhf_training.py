"""OpenRLHF's train_ppo_ray from start to end on a CPU: Ray, DeepSpeed in two processes, a vLLM engine.

Its environment is that of examples/openrlhf/quickstart_cpu.sh.
"""

import os
import subprocess
from pathlib import Path

import pytest
from interpreter import ROOT, bash, wait_until
from probe_files import saved
from settings_reads import unread
from witnesses import check_weights, end, environment, start

SAMPLES = 8

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


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
    first = train(path, tmp_path, "--ckpt.save_steps", "1")
    latest = tmp_path / "checkpoints" / "_actor" / "latest"
    try:
        wait_until(lambda: latest.exists() and latest.read_text() >= "global_step2", tmp_path / "log", first, 900)
    finally:
        end(first)
    reached = int(latest.read_text().removeprefix("global_step"))
    assert 2 <= reached < 5
    for file in (tmp_path / "probe").glob("*"):  # of a step that the checkpoint may not have
        file.unlink()

    second = train(path, tmp_path, "--ckpt.save_steps", "1", "--ckpt.load_enable")
    try:
        assert second.wait(timeout=900) == 0, (tmp_path / "log").read_text()[-5000:]
    finally:
        end(second)
    assert len(saved(tmp_path, "maker")) == 5 - reached
    assert check_weights(saved(tmp_path, "maker"), saved(tmp_path, "loss"), SAMPLES, epsilon=1e-9) > 0
    records = {file.name for file in (tmp_path / "tokens").glob("*.parquet")}
    assert {f"step_{step:06d}.parquet" for step in range(1, 6)} <= records
    assert (tmp_path / "log").read_text().count("cw_grpo: this run trains on reweighted advantages") == 2


NOT_ON_A_CPU = ("--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep", "--ds.packing_samples")
ON_A_CPU = """
--actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --vllm.num_engines 1 --vllm.gpu_memory_utilization 0.3
--vllm.enforce_eager --ds.attn_implementation sdpa --data.max_len 256 --data.max_samples 4 --rollout.batch_size 4
--rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 32 --train.batch_size 16 --ckpt.save_steps 1
"""
HANDED_ON = {f"actor.adam.{name}" for name in ("betas", "lr", "weight_decay")}  # as a dict, to the optimizer's maker


def test_every_argument_of_the_recipe_is_read(path, tmp_path):
    """By OpenRLHF in a step on a CPU, which reads whether the flags that are left out are set, but none of a critic's
    arguments."""
    data, model = os.environ["QUICKSTART_DATA"], str(ROOT / "examples" / "cpu" / "model")
    recipe = bash("openrlhf/paper.sh", METHOD="cw_grpo", MODEL_PATH=model, OUT=str(tmp_path / "run"), DRY_RUN="1")
    given = [*recipe.stdout.splitlines(), *ON_A_CPU.split(), "--critic.adam.lr", "1e-5"]
    given += ["--data.prompt_dataset", f"{data}/open_rs/train.parquet"]
    arguments = [word for word in given if word not in NOT_ON_A_CPU]
    run = start("openrlhf", path, tmp_path, "openrlhf_probe", "", *arguments)
    try:
        assert run.wait(timeout=900) == 0, (tmp_path / "log").read_text()[-5000:]
    finally:
        end(run)
    names = {word[2:] for word in given if word.startswith("--")}
    assert unread(tmp_path / "probe", names) == HANDED_ON | {"critic.adam.lr"}
