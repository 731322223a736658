"""SkyRL's own training loop in one process: its trainer, generator, environment and FSDP2 worker, without Ray and vLLM.

test_skyrl_releases.py runs this file. transformers' generate stands in the place of SkyRL's inference servers.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import ROOT, bash, free_port
from reference import grpo_advantages, reference_advantages
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.tracking import Tracking
from transformers import AutoModelForCausalLM, AutoTokenizer

from cw_plugin.hosts.skyrl import CWGRPOTrainer
from cw_plugin.lab.reports.metrics import ENTROPY, NORM, REWARD
from cw_plugin.lab.reports.runs import read_run
from cw_plugin.lab.rewards import skyrl as rewards

MODEL = ROOT / "examples" / "cpu" / "model"
PROMPTS, SAMPLES, STEPS = 4, 6, 2
TOKENIZER = AutoTokenizer.from_pretrained(MODEL, padding_side="left")


class Engine:
    """Samples with transformers, from the worker's weights."""

    def __init__(self, worker: Any) -> None:
        self.model, self.worker = AutoModelForCausalLM.from_pretrained(MODEL), worker
        torch.manual_seed(1)

    @torch.no_grad()
    async def generate(self, batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        self.model.load_state_dict(weights(self.worker))
        inputs = TOKENIZER.pad({"input_ids": batch["prompt_token_ids"]}, return_tensors="pt")
        made = self.model.generate(**inputs, do_sample=True, top_k=0, max_new_tokens=64)
        end, width = TOKENIZER.eos_token_id, inputs["input_ids"].shape[1]
        rows = [row[: row.index(end) + 1] if end in row else row for row in made[:, width:].tolist()]
        return {
            "responses": TOKENIZER.batch_decode(rows, skip_special_tokens=True),
            "response_ids": rows,
            "stop_reasons": ["stop" if row[-1] == end else "length" for row in rows],
            "response_logprobs": None,
        }


class Local:
    """SkyRL's WorkerDispatch with one worker, in this process. What it trains on is kept in ``trained``."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.trained = worker, []

    def get_lcm_dp_size(self) -> int:
        return 1

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        return [data[first:last] for first, last in boundaries]

    def forward_from_staged(self, model: str, data: Any) -> Any:
        return self.worker.forward(data)

    def forward_backward_from_staged(self, model: str, data: Any) -> Any:
        self.trained.append(data)
        return self.worker.forward_backward(data)

    def optim_step(self, model: str) -> float:
        return self.worker.optim_step()

    def init_weight_sync_state(self, client: Any) -> None:
        pass

    async def save_weights_for_sampler(self) -> None:
        pass

    def empty_cache(self, model: str | None = None) -> None:
        pass


def weights(worker: Any) -> dict[str, torch.Tensor]:
    return {name: values.full_tensor().clone() for name, values in worker.model.model.state_dict().items()}


def train(kind: type, folder: Path) -> tuple[dict[str, torch.Tensor], list[Any], list[tuple[list[float], list[str]]]]:
    """The trained weights, what the worker got in each step, and the rewards and prompts of each step."""
    os.environ["TENSORBOARD_DIR"] = str(folder / "tensorboard")
    values = {
        "trainer.policy.model.path": MODEL,
        "trainer.policy.optimizer_config.lr": 1e-3,
        "trainer.flash_attn": "false",
        "trainer.remove_microbatch_padding": "false",
        "trainer.gradient_checkpointing": "false",
        "trainer.placement.colocate_all": "false",
        "trainer.algorithm.use_kl_loss": "false",
        "trainer.enable_ray_gpu_monitor": "false",
        "trainer.train_batch_size": PROMPTS,
        "trainer.policy_mini_batch_size": PROMPTS,
        "trainer.micro_train_batch_size_per_gpu": 8,
        "trainer.micro_forward_batch_size_per_gpu": 8,
        "trainer.max_training_steps": STEPS,
        "trainer.eval_interval": -1,
        "trainer.ckpt_interval": -1,
        "trainer.resume_mode": "none",
        "trainer.print_example_interval": 0,
        "trainer.export_path": folder,
        "data.dataloader.num_workers": 0,
        "environment.env_class": "cw_grpo",
        "generator.batched": "true",
        "generator.n_samples_per_prompt": SAMPLES,
        "generator.inference_engine.enable_ray_prometheus_stats": "false",
    }
    cfg = SkyRLTrainConfig.from_cli_overrides([f"{key}={value}" for key, value in values.items()])
    address = {"master_addr": "127.0.0.1", "master_port": int(free_port())}
    worker = FSDPPolicyWorkerBase(
        cfg=cfg.trainer, world_size=1, rank=0, local_rank=0, sequence_parallel_size=1, **address
    )
    worker.init_worker_process_group()
    worker.init_model(str(MODEL), num_training_steps=STEPS)
    engine, local = Engine(worker), Local(worker)
    data = PromptDataset([f"{os.environ['QUICKSTART_DATA']}/open_rs/train.parquet"], TOKENIZER, 192, num_workers=0)
    generator = SkyRLGymGenerator(cfg.generator, cfg.environment.skyrl_gym, engine, TOKENIZER)
    trainer = kind(cfg=cfg, tracker=Tracking("", "", "tensorboard"), tokenizer=TOKENIZER, train_dataset=data,
                   inference_engine_client=engine, generator=generator)  # fmt: skip
    trainer.dispatch, scored, forward = local, [], trainer.fwd_logprobs_values_reward

    def watched(batch: Any) -> Any:
        scored.append((batch["rewards"].sum(-1).tolist(), list(batch.metadata["uids"])))
        return forward(batch)

    trainer.fwd_logprobs_values_reward = watched
    asyncio.run(trainer.train())
    return weights(worker), local.trained, scored


@pytest.fixture(scope="module", autouse=True)
def problems():
    bash("cpu/data.sh")
    rewards.register(model_path=str(MODEL))


def test_the_worker_trains_on_the_weights_or_on_skyrls_own_advantages(tmp_path, monkeypatch):
    plain, *_ = train(RayPPOTrainer, tmp_path / "plain")
    monkeypatch.setenv("CW_GRPO_KERNEL", "none")
    without, *_ = train(CWGRPOTrainer, tmp_path / "none")
    assert all(torch.equal(plain[name], without[name]) for name in plain)

    monkeypatch.delenv("CW_GRPO_KERNEL")
    reweighted, trained, scored = train(CWGRPOTrainer, tmp_path / "cw")
    assert any(not torch.equal(plain[name], reweighted[name]) for name in plain)
    assert len(trained) == len(scored) == STEPS
    for batch, (given, prompts) in zip(trained, scored, strict=True):
        advantages = grpo_advantages(given, prompts)
        wanted, _ = reference_advantages(batch["action_log_probs"], advantages, batch["loss_mask"], prompts)
        got = batch["advantages"].double() * batch["loss_mask"] * batch["loss_mask"].sum()  # SkyRL's mean over tokens
        torch.testing.assert_close(got, torch.tensor(wanted, dtype=torch.float64), atol=1e-5, rtol=1e-5)
    run = read_run(tmp_path / "cw")
    for metric in (REWARD, ENTROPY, NORM, "cw_grpo/sigma"):
        assert list(run.series(metric).index) == list(range(1, STEPS + 1)), metric
