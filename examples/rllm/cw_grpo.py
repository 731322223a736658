"""CW-GRPO for rLLM with Tinker: use this class in place of rllm.trainer.unified_trainer.AgentTrainer."""

import numpy as np
import torch
from rllm.trainer.algorithms.advantage import get_rllm_adv_estimator
from rllm.trainer.algorithms.config import AlgorithmConfig
from rllm.trainer.algorithms.transform import _default_traj_grouping_hook
from rllm.trainer.unified_trainer import AgentTrainer
from torch.nn.utils.rnn import pad_sequence

from cw_plugin.errors import OptionsError
from cw_plugin.reweight import reweight


class CWGRPOAgentTrainer(AgentTrainer):
    """Writes w~ A to each step, where rLLM takes it as an advantage that a workflow has computed."""

    def __init__(self, config, *args, backend="tinker", **kwargs):
        if backend != "tinker":
            raise OptionsError(f"backend={backend!r} takes one advantage for a trajectory", fix="use backend='tinker'")
        if config.rllm.get("async_training", {}).get("enable", False):
            raise OptionsError("rllm.async_training.enable=true calls no hook, and trains plain GRPO", fix="remove it")
        config.rllm.algorithm.use_precomputed_advantage = True
        super().__init__(config, *args, backend=backend, traj_grouping_hook=group_and_reweight, **kwargs)


def group_and_reweight(episodes, transform_config, compact_filtering_config=None):
    """rLLM's groups. Weights are over all tokens of a group's trajectories."""
    groups = _default_traj_grouping_hook(episodes, transform_config, compact_filtering_config)
    for group in groups:
        rewards = np.array([trajectory.reward for trajectory in group.trajectories])
        (advantages,), _ = get_rllm_adv_estimator("grpo")([rewards], AlgorithmConfig())
        steps = [(step, a) for t, a in zip(group.trajectories, advantages, strict=True) for step in t.steps]
        log_probs = pad_sequence([torch.tensor(step.logprobs) for step, _ in steps], batch_first=True)
        mask = pad_sequence([torch.ones(len(step.logprobs)) for step, _ in steps], batch_first=True)
        weighted, _statistics = reweight(log_probs, torch.tensor([float(a) for _, a in steps]), mask)
        for (step, _), row in zip(steps, weighted, strict=True):
            step.advantage = row[: len(step.logprobs)].tolist()
    return groups
