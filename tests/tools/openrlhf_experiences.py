"""OpenRLHF's own arguments, experience maker and experiences, and the advantages that these should have."""

import copy
import functools
import random
import runpy
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from interpreter import ROOT
from openrlhf.models import Actor
from openrlhf.models.utils import compute_approx_kl
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from reference import reference_advantages
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer

PROMPTS, SAMPLES = 8, 6
MODEL = ROOT / "examples" / "cpu" / "model"
FLAT = version("openrlhf").startswith(("0.9.", "0.10.0", "0.10.1"))  # arguments are nested from 0.10.2 on
IN_0_9 = {
    "actor.num_gpus_per_node": "actor_num_gpus_per_node",
    "actor.policy_loss_type": "policy_loss_type",
    "algo.advantage.estimator": "advantage_estimator",
    "algo.kl.init_coef": "init_kl_coef",
    "algo.kl.use_loss": "use_kl_loss",
    "ckpt.load_enable": "load_checkpoint",
    "ckpt.output_dir": "save_path",
    "ckpt.path": "ckpt_path",
    "reward.remote_url": "remote_rm_url",
    "rollout.max_tokens_per_gpu": "rollout_max_tokens_per_gpu",
    "rollout.micro_batch_size": "micro_rollout_batch_size",
    "rollout.n_samples_per_prompt": "n_samples_per_prompt",
    "train.dynamic_batch_enable": "use_dynamic_batch",
}


def flag(argument: str) -> str:
    return IN_0_9[argument] if FLAT else argument


@functools.cache
def parsed(*arguments: str) -> Any:
    """What train_ppo_ray makes of its arguments."""
    stop = Mock(side_effect=SystemExit)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("openrlhf.utils.get_strategy", stop)
        patch.setattr("ray.is_initialized", lambda: True)
        patch.setattr(sys, "argv", ["train_ppo_ray", *arguments])
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    assert stop.called
    return stop.call_args.args[0]


def settings(tmp_path, **changed: Any) -> Any:
    args = copy.deepcopy(parsed("--" + flag("reward.remote_url"), "none.py"))
    values = {
        "actor.num_gpus_per_node": 2,
        "algo.kl.init_coef": 0.0,
        "algo.advantage.estimator": "group_norm",
        "ckpt.output_dir": str(tmp_path),
        "ckpt.path": str(tmp_path / "checkpoints"),
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.micro_batch_size": 4,  # which does not divide a group
        "rollout.max_tokens_per_gpu": 200,
    }
    for argument, value in (values | changed).items():
        *parents, last = flag(argument).split(".")
        setattr(functools.reduce(getattr, parents, args), last, value)
    return args


def maker_of(args: SimpleNamespace) -> RemoteExperienceMaker:
    strategy, kl = SimpleNamespace(args=args), SimpleNamespace(value=0.0)
    return RemoteExperienceMaker(None, None, None, None, kl, strategy, AutoTokenizer.from_pretrained(MODEL))


def samples(turns: int, seed: int = 0) -> list[Any]:
    """What the generator makes of vLLM's answers. Responses of several turns have tokens of the environment between."""
    chance, made = random.Random(seed), []
    for number in range(PROMPTS):
        prompt = [chance.randrange(300) for _ in range(chance.randint(3, 12))]
        for _ in range(SAMPLES):
            response = [chance.randrange(300) for _ in range(chance.randint(2 * turns - 1, 30))]
            cuts = sorted(chance.sample(range(1, len(response)), 2 * turns - 2)) if turns > 1 else []
            reward = float(chance.random() < 0.5) if number else 1.0  # the first prompt has no signal
            made.append(sample(f"prompt {number}", prompt, response, reward, cuts))
    return made


def sample(name: str, prompt: list[int], response: list[int], reward: float, cuts: Sequence[int] = ()) -> Any:
    """A response to the prompt of this name. Between two cuts stand tokens of the environment."""
    bounds = [len(prompt) + cut for cut in (0, *cuts, len(response))]
    answer = {
        "observation_tokens": prompt + response,
        "action_ranges": list(zip(bounds[::2], bounds[1::2], strict=True)),
        "reward": reward,
        "scores": 0.0,
        "rollout_log_probs": None,
        "prompt": name,
        "label": "",
        "truncated": False,
    }
    return SamplesGenerator.__new__(SamplesGenerator)._process_response_into_experience(answer)


def experiences(maker: RemoteExperienceMaker, actor: Actor, turns: int, rows: list[Any] | None = None) -> list[Any]:
    """What make_experience gives to compute_advantages_and_returns, of these rows of :func:`samples`, or of all."""
    made = maker.split_rollout_samples(samples(turns) if rows is None else rows)
    for experience in made:
        with torch.no_grad():
            log_probs = actor(experience.sequences, experience.action_mask, experience.attention_mask)
        experience.action_log_probs = log_probs
        experience.kl = compute_approx_kl(log_probs, log_probs, kl_estimator="k1")
    return made


def expected(plain: list[Any], scope: str) -> tuple[list[list[float]], float]:
    """w~ A of every row, with groups by the text of the prompt, in float64; and the mean sigma of the groups."""
    rows = list(each(plain))
    log_probs, advantages, masks = (
        pad_sequence([getattr(experience, of)[i].double() for experience, i in rows], batch_first=True)
        for of in ("action_log_probs", "advantages", "action_mask")
    )
    uids = [experience.prompts[i] if scope == "group" else 0 for experience, i in rows]
    weighted, groups = reference_advantages(log_probs, advantages, masks, uids)
    assert len(groups) == (PROMPTS if scope == "group" else 1)
    sigmas = [group["sigma"] for group in groups.values() if group["sigma"] > 0]
    widths = [experience.action_mask.shape[1] for experience, _ in rows]
    of_rows = [row[:width] for row, width in zip(weighted, widths, strict=True)]
    return of_rows, sum(sigmas) / len(sigmas)


def each(made: list[Any]):
    return ((experience, i) for experience in made for i in range(len(experience.prompts)))


def both(plain, maker, actor, turns=1) -> tuple[list[Any], list[Any]]:
    made = experiences(maker, actor, turns)
    return plain(maker, copy.deepcopy(made)), maker.compute_advantages_and_returns(made)
