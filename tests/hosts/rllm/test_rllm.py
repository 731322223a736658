"""The class of examples/rllm with rLLM's own functions. rLLM is not on PyPI: put a clone of it on PYTHONPATH."""

import pytest

pytest.importorskip("rllm")

import inspect

import torch
from interpreter import ROOT
from omegaconf import OmegaConf
from reference import reference_advantages
from rllm.trainer import unified_trainer
from rllm.trainer.algorithms.advantage import collect_reward_and_advantage_from_trajectory_groups
from rllm.trainer.algorithms.config import AlgorithmConfig, TransformConfig
from rllm.trainer.algorithms.transform import transform_episodes_to_trajectory_groups
from rllm.types import Episode, Step, Trajectory
from torch.nn.utils.rnn import pad_sequence

from cw_plugin.errors import OptionsError


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "rllm"))
    import cw_grpo

    return cw_grpo


def episodes() -> list[Episode]:
    """Three tasks, five rollouts of each, one to three steps in each."""
    chance, made = torch.Generator().manual_seed(0), []
    for task in range(3):
        for rollout in range(5):
            steps = []
            for _ in range(int(torch.randint(1, 4, (1,), generator=chance))):
                length = int(torch.randint(2, 12, (1,), generator=chance))
                log_probs = (-5 * torch.rand(length, generator=chance) ** 3).tolist()
                steps.append(Step(prompt_ids=[1, 2], response_ids=list(range(length)), logprobs=log_probs))
            reward = float(torch.rand(1, generator=chance))
            trajectory = Trajectory(name="solver", steps=steps, reward=reward)
            made.append(Episode(id=f"task{task}:{rollout}", trajectories=[trajectory]))
    return made


def test_all_steps_of_a_group_have_the_reference_weights(example):
    hook = {"traj_grouping_hook": example.group_and_reweight}
    groups, _ = transform_episodes_to_trajectory_groups(episodes(), TransformConfig(), None, **hook)
    collect_reward_and_advantage_from_trajectory_groups(groups, AlgorithmConfig(use_precomputed_advantage=True))
    assert len(groups) == 3
    for group in groups:
        rewards = torch.tensor([trajectory.reward for trajectory in group.trajectories], dtype=torch.float64)
        of_trajectories = ((rewards - rewards.mean()) / rewards.std(correction=0)).tolist()  # as rLLM's GRPO has it
        rows = [(s, a) for t, a in zip(group.trajectories, of_trajectories, strict=True) for s in t.steps]
        log_probs = pad_sequence([torch.tensor(step.logprobs, dtype=torch.float64) for step, _ in rows], True)
        mask = pad_sequence([torch.ones(len(step.logprobs)) for step, _ in rows], True)
        wanted, _ = reference_advantages(log_probs, [a for _, a in rows], mask, [0] * len(rows))
        found = pad_sequence([torch.tensor(step.advantage, dtype=torch.float64) for step, _ in rows], True)
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), atol=5e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("backend", "asynchronous", "said"),
    [
        ("verl", False, "backend='verl' takes one advantage"),
        ("fireworks", False, "backend='fireworks' takes one advantage"),
        ("tinker", True, "async_training.enable=true calls no hook"),
    ],
)
def test_what_would_not_train_on_the_weights_is_refused(example, backend, asynchronous, said):
    config = OmegaConf.create({"rllm": {"async_training": {"enable": asynchronous}, "algorithm": {}}})
    with pytest.raises(OptionsError, match=said):
        example.CWGRPOAgentTrainer(config, backend=backend)


def test_the_hook_is_called_with_every_batch():
    trainer = unified_trainer.UnifiedTrainer
    assert "traj_grouping_hook" in inspect.signature(trainer.__init__).parameters, (
        "UnifiedTrainer no longer takes traj_grouping_hook, by which examples/rllm puts the weights in"
    )
    assert "traj_grouping_hook=self.traj_grouping_hook" in inspect.getsource(trainer), (
        "UnifiedTrainer no longer calls its traj_grouping_hook, by which examples/rllm puts the weights in"
    )
