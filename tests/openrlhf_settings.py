"""The arguments of train_ppo_ray as OpenRLHF's classes see them: nested from 0.10 on, flat in 0.9."""

from __future__ import annotations

from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

# What the classes under test read: the name, the name in 0.9, the value.
NAMES = {
    "actor.num_nodes": ("actor_num_nodes", 1),
    "actor.num_gpus_per_node": ("actor_num_gpus_per_node", 1),
    "actor.policy_loss_type": ("policy_loss_type", "ppo"),
    "algo.advantage.estimator": ("advantage_estimator", "gae"),
    "algo.advantage.gamma": ("gamma", 1.0),
    "algo.advantage.lambd": ("lambd", 1.0),
    "algo.advantage.no_std_norm": ("no_advantage_std_norm", False),
    "algo.kl.init_coef": ("init_kl_coef", 0.01),
    "algo.kl.use_loss": ("use_kl_loss", False),
    "ckpt.output_dir": ("save_path", "./ckpt"),
    "ds.ring_attn_size": ("ring_attn_size", 1),
    "ds.tensor_parallel_size": ("ds_tensor_parallel_size", 1),
    "reward.clip_range": ("reward_clip_range", (-10, 10)),
    "reward.overlong_buffer_len": ("overlong_buffer_len", None),
    "reward.overlong_penalty_factor": ("overlong_penalty_factor", 1),
    "reward.stop_properly_penalty_coef": ("stop_properly_penalty_coef", None),
    "rollout.max_tokens_per_gpu": ("rollout_max_tokens_per_gpu", None),
    "rollout.micro_batch_size": ("micro_rollout_batch_size", 1),
    "rollout.n_samples_per_prompt": ("n_samples_per_prompt", 1),
    "train.dynamic_batch_enable": ("use_dynamic_batch", False),
}
FLAT = version("openrlhf").startswith("0.9.")


def name(argument: str) -> str:
    return NAMES[argument][0] if FLAT else argument


def arguments(changed: dict[str, Any]) -> SimpleNamespace:
    values = {argument: value for argument, (_, value) in NAMES.items()} | changed
    root = SimpleNamespace()
    for argument, value in values.items():
        *parents, last = name(argument).split(".")
        node = root
        for parent in parents:
            if not hasattr(node, parent):
                setattr(node, parent, SimpleNamespace())
            node = getattr(node, parent)
        setattr(node, last, value)
    return root
