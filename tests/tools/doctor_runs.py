"""A run of verl without faults, and how a test plants one: for the tests of the doctor."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from interpreter import ROOT
from omegaconf import DictConfig, OmegaConf

A = "actor_rollout_ref"
LOSS = f"{A}.actor.policy_loss.loss_mode"
REWARD = "reward.custom_reward_function"
ENV = "ray_kwargs.ray_init.runtime_env.env_vars"
COLUMNS = ["data_source", "prompt", "reward_model"]
QUESTION = [{"role": "user", "content": "What is 2+2?"}]
ROW = {"data_source": "my/data", "prompt": QUESTION, "reward_model": {"ground_truth": "4"}}
GOOD = f"""
algorithm.adv_estimator=cw_grpo data.train_batch_size=8 data.max_prompt_length=128 data.max_response_length=64
{A}.model.path={ROOT}/examples/cpu/model {A}.actor.ppo_mini_batch_size=8 {A}.actor.ppo_micro_batch_size_per_gpu=4
{A}.actor.loss_agg_mode=seq-mean-token-mean {A}.rollout.name=vllm {A}.rollout.n=4
{A}.rollout.log_prob_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=2 trainer.logger=[console,file]
trainer.device=cpu {A}.rollout.max_model_len=192
trainer.test_freq=5 {REWARD}.path=pkg://cw_plugin.lab.rewards {REWARD}.name=compute_score
""".split()


def write_rows(path: Path, ground_truths: Any = ("4",), prompt: Any = QUESTION, names: Any = COLUMNS) -> Path:
    cells = [{"style": "rule", "ground_truth": value} for value in ground_truths]
    pq.write_table(pa.table([["my/data"] * len(cells), [prompt] * len(cells), cells], names=names), path)
    return path


def changed(config: DictConfig, *overrides: str) -> DictConfig:
    """A copy with other values, without composing anew."""
    config = config.copy()
    OmegaConf.set_struct(config, False)
    return OmegaConf.merge(config, OmegaConf.from_dotlist(list(overrides)))
