"""SkyRL's own trainers, what its generator returns, a step without Ray, and the advantages that it should have.

In the place of SkyRL's workers, which need Ray, stands :class:`Workers`.
"""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import torch
from interpreter import ROOT
from reference import reference_advantages
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.generators.base import TrajectoryID
from transformers import AutoTokenizer

PROMPTS, SAMPLES = 8, 6
ALGORITHM = SkyRLTrainConfig().trainer.algorithm
MODEL = ROOT / "examples" / "cpu" / "model"
TOKENIZER = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
SETTINGS = {
    "trainer.policy.model.path": MODEL,
    "trainer.placement.colocate_all": "false",
    "trainer.placement.policy_num_gpus_per_node": 2,
    "trainer.algorithm.use_kl_loss": "false",
    "trainer.enable_ray_gpu_monitor": "false",
    "trainer.logger": "console",
    "trainer.train_batch_size": PROMPTS,
    "trainer.policy_mini_batch_size": PROMPTS // 2,
    "generator.n_samples_per_prompt": SAMPLES,
    "generator.inference_engine.enable_ray_prometheus_stats": "false",
}


def settings(folder: Path, **changed: Any) -> SkyRLTrainConfig:
    values = SETTINGS | {"trainer.export_path": folder, "trainer.ckpt_path": folder} | changed
    return SkyRLTrainConfig.from_cli_overrides([f"{key}={value}" for key, value in values.items()])


class Workers:
    """SkyRL's WorkerDispatch without workers. Log-probs are made up from each token and its place in the response; what
    would be trained on is kept in ``staged``."""

    def __init__(self, size: int = 2) -> None:
        self.size, self.staged = size, []

    def get_lcm_dp_size(self) -> int:
        return self.size

    def forward(self, model: str, data: Any) -> SimpleNamespace:
        chance = torch.Generator().manual_seed({"policy": 0, "ref": 1}[model])
        responses = data["sequences"][:, -data.metadata["response_length"] :]
        of_tokens = torch.rand(TOKENIZER.vocab_size, responses.size(1), generator=chance)
        log_probs = -5 * of_tokens[responses, torch.arange(responses.size(1))] ** 3
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": row.tolist()} for row in log_probs])

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        assert model == "policy"
        self.staged.append(data)
        return []

    def empty_cache(self, model: str | None = None) -> None:
        pass


def trainer_of(kind: type, cfg: SkyRLTrainConfig, workers: int = 2) -> Any:
    cfg.trainer.recompute_old_logprobs_per_minibatch = False  # one forward pass, which Workers has
    trainer = kind(cfg=cfg, tracker=Mock(), tokenizer=TOKENIZER, train_dataset=None, inference_engine_client=None,
                   generator=None)  # fmt: skip
    trainer.dispatch, trainer.global_step = Workers(workers), 1
    if cfg.trainer.algorithm.use_kl_in_reward:
        trainer.ref_model = "ref"
    return trainer


def rollouts(turns: int = 1, step_wise: bool = False) -> tuple[dict[str, Any], list[str]]:
    """What SkyRL's generator returns, and the uids. Between several turns stand tokens of the environment. Step-wise,
    each of the turns, one to three, is a row of its own. The first prompt has no signal."""
    chance, rows, uids = random.Random(0), [], []

    def tokens(low: int, high: int) -> list[int]:
        return [chance.randrange(5, TOKENIZER.vocab_size) for _ in range(chance.randint(low, high))]

    for number in range(PROMPTS):
        prompt = tokens(3, 12)
        for sample in range(SAMPLES):
            reward = float(chance.random() < 0.5) if number else 1.0
            trajectory = TrajectoryID(instance_id=str(number), repetition_id=sample)
            steps = chance.randint(1, 3) if step_wise else 1
            for step in range(steps):
                response = tokens(2 * turns, 30)
                mask = [1] * len(response)
                for hole in chance.sample(range(1, len(response) - 1), 2 * (turns - 1)):
                    mask[hole] = 0
                of_token = [0.0] * (len(response) - 1) + [reward if step == steps - 1 else 0.0]
                rows.append((prompt, response, of_token, mask, trajectory, step == steps - 1))
                uids.append(str(number))
    names = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "trajectory_ids", "is_last_step")
    made = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if not step_wise:
        del made["is_last_step"]
    return made | {"stop_reasons": ["stop"] * len(rows), "rollout_logprobs": None}, uids


def train(trainer: Any, made: dict[str, Any], uids: list[str]) -> tuple[Any, Any]:
    """One step, as RayPPOTrainer.train makes it. Returns the batch with advantages, before SkyRL scales them, and the
    batch that its workers would get."""
    made, uids = trainer.postprocess_generator_output(dict(made), uids)
    batch = trainer.fwd_logprobs_values_reward(trainer.convert_to_training_input(made, uids))
    if trainer.cfg.trainer.algorithm.use_kl_in_reward:
        batch = trainer.apply_reward_kl_penalty(batch)
    batch = trainer.compute_advantages_and_returns(batch)
    advantages = batch["advantages"].clone()
    trainer.train_critic_and_policy(batch)
    return advantages, trainer.dispatch.staged[-1]


def expected(plain: Any, uids: list[str], scope: str = "group") -> tuple[torch.Tensor, float]:
    """w~ A of every row, in float64, from SkyRL's own advantages; and the mean sigma of the groups."""
    advantages, batch = plain
    rows = len(advantages)
    uids = uids + [f"padding {row}" for row in range(rows - len(uids))] if scope == "group" else [0] * rows
    weighted, groups = reference_advantages(batch["action_log_probs"], advantages, batch["loss_mask"], uids)
    sigmas = [group["sigma"] for group in groups.values() if group["sigma"] > 0]
    return torch.tensor(weighted, dtype=torch.float64), sum(sigmas) / len(sigmas)
