"""SkyRL's own program from start to end on a CPU: Ray, two FSDP2 workers, a vLLM server behind its router.

Its environment is that of examples/skyrl/quickstart_cpu.sh.
"""

import pytest

pytest.importorskip("verl")

import os
import subprocess
from pathlib import Path

from interpreter import ROOT
from probe_files import saved
from witnesses import check_weights, environment, kill_and_resume, start

from cw_plugin.lab.reports.metrics import ENTROPY, NORM, REWARD
from cw_plugin.lab.reports.runs import read_run

STEPS, SAMPLES, MINI_BATCHES = 5, 4, 2

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def path(request) -> str:
    return environment(request, "skyrl")


def train(path: str, folder: Path) -> subprocess.Popen:
    """Six prompts with four responses each are 24 rows: two mini-batches of twelve, of which each worker gets six. So
    one prompt of each mini-batch is shared by both workers."""
    settings = f"""
trainer.strategy=fsdp trainer.policy.model.path={ROOT}/examples/cpu/model
trainer.algorithm.advantage_estimator=grpo trainer.algorithm.loss_reduction=sequence_mean
trainer.algorithm.use_kl_loss=false trainer.policy.optimizer_config.lr=1e-3 trainer.flash_attn=false
trainer.remove_microbatch_padding=false trainer.enable_ray_gpu_monitor=false trainer.print_example_interval=0
trainer.placement.colocate_all=false trainer.placement.policy_num_gpus_per_node=2
trainer.train_batch_size=6 trainer.policy_mini_batch_size={6 // MINI_BATCHES}
trainer.micro_train_batch_size_per_gpu=3 trainer.micro_forward_batch_size_per_gpu=6
trainer.max_training_steps={STEPS} trainer.eval_interval=-1 trainer.eval_before_train=false
trainer.ckpt_interval=1 trainer.max_ckpts_to_keep=2 trainer.max_prompt_length=192 trainer.logger=tensorboard
trainer.export_path={folder} trainer.ckpt_path={folder}/checkpoints trainer.log_path={folder}/infra
data.train_data=['{os.environ["QUICKSTART_DATA"]}/open_rs/train.parquet'] data.dataloader.num_workers=0
environment.env_class=cw_grpo generator.batched=true generator.n_samples_per_prompt={SAMPLES}
generator.sampling_params.max_generate_length=64
generator.inference_engine.num_engines=1 generator.inference_engine.distributed_executor_backend=mp
generator.inference_engine.enforce_eager=true generator.inference_engine.enable_ray_prometheus_stats=false
generator.inference_engine.engine_init_kwargs.worker_cls=vllm.v1.worker.cpu_worker.CPUWorker
generator.inference_engine.max_num_seqs=32 generator.inference_engine.max_num_batched_tokens=2048
"""
    more = {"TENSORBOARD_DIR": str(folder / "tensorboard"), "SKYRL_CPU_GPUS": "3"}
    return start("skyrl", path, folder, "skyrl_probe", settings, **more)


def of_sequence_mean(row, rows: int) -> float:
    """SkyRL's: over the tokens of a response, then over the responses of a mini-batch."""
    return MINI_BATCHES / (float(row["mask"].sum()) * rows)


def test_two_workers_train_and_a_killed_run_goes_on(path, tmp_path):
    latest = tmp_path / "checkpoints" / "latest_ckpt_global_step.txt"
    reached = kill_and_resume(
        tmp_path,
        train(path, tmp_path),
        resume=lambda: train(path, tmp_path),
        saved=lambda: int(latest.read_text() or 0) if latest.exists() else 0,
    )
    assert len(saved(tmp_path, "trainer")) == STEPS - reached
    computed, trained = saved(tmp_path, "trainer"), saved(tmp_path, "worker")
    assert check_weights(computed, trained, SAMPLES, epsilon=1e-6, scale=of_sequence_mean) > 0
    assert sum(len(rows) for _, rows in trained) == sum(len(rows) for _, rows in computed)
    run = read_run(tmp_path)
    for metric in (REWARD, ENTROPY, NORM, "cw_grpo/sigma"):
        # SkyRL logs a step after its checkpoint, so the kill may have lost the metrics of that step alone.
        assert {*run.series(metric).index, reached} == set(range(1, STEPS + 1)), metric
