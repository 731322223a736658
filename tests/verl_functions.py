"""Checks cw_plugin against the functions of the verl that is imported, whichever it is: no workers, no model, one Ray.

export VERL_USE_EXTERNAL_MODULES=cw_plugin.verl_integration.register
PYTHONPATH=A_VERL:. python -W ignore tests/verl_functions.py

A_VERL is a folder that holds the package verl: an unpacked wheel, or a checkout. verl up to 0.8 knows no entry points,
hence the variable. Prints one line for each check, and
ends with exit code 1 at the first that fails. test_verl_releases.py runs it on released wheels; the nightly workflow
runs it on verl's main.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import ray
import torch
import verl
from reference import reference_weights
from trainers import composed, legacy_trainer, v1_trainer
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer
from verl.trainer.ppo.metric_utils import compute_data_metrics
from verl.utils import config as verl_config
from verl.utils.tracking import Tracking

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.verl_integration import run
from cw_plugin.verl_integration.hooks import hooks_of, require_hooks

ESTIMATOR = "algorithm.adv_estimator=cw_grpo"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo"


def batch(prompts: int = 5, responses: int = 4, width: int = 30) -> tuple[DataProto, list[str]]:
    """A step's batch with rows of a group scattered, and the keys that V1 gives them."""
    g = torch.Generator().manual_seed(0)
    order = torch.randperm(prompts * responses, generator=g)
    keys = [f"prompt{int(row) // responses}_{int(row) % responses}_0" for row in order]
    mask = (torch.arange(width) < torch.randint(2, width + 1, (len(keys), 1), generator=g)).long()
    rewards = torch.zeros(mask.shape)
    rewards[:, 0] = torch.randint(0, 3, (len(keys),), generator=g).float()
    tensors = {
        "prompts": torch.ones(len(keys), 4, dtype=torch.long),
        "responses": torch.randint(10, (len(keys), width), generator=g),
        "attention_mask": torch.cat([torch.ones(len(keys), 4, dtype=torch.long), mask], 1),
        "response_mask": mask,
        "token_level_rewards": rewards,
        "token_level_scores": rewards,
        "old_log_probs": -torch.rand(mask.shape, generator=g).exp().sub(1).pow(3) * mask,
    }
    uids = np.array([key.split("_")[0] for key in keys], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids}), keys


def advantages(trainer: str, estimator: str, config: object) -> tuple[torch.Tensor, DataProto]:
    """As the trainer calls it, through the name that it holds."""
    data, keys = batch()
    of_v1 = {}
    compute = ray_trainer.compute_advantage
    if trainer == "V1":
        from verl.trainer.ppo.v1 import trainer_base

        compute, of_v1 = trainer_base.compute_advantage_for_multi_trajectories, {"batch_keys": keys}
    data = compute(data, **of_v1, adv_estimator=estimator, norm_adv_by_std_in_grpo=True, config=config.algorithm)
    return data.batch["advantages"], data


def check_trainer(trainer: str, make: object, use_v1: tuple[str, ...]) -> None:
    """Construction, advantages, metrics and record of one trainer."""
    with tempfile.TemporaryDirectory() as folder:
        made = make(ESTIMATOR, f"trainer.default_local_dir={folder}")
        made.global_steps = 1 if trainer == "legacy" else 2  # V1's texts come from TransferQueue, which is not running
        assert run.current() is not None
        weighted, data = advantages(trainer, "cw_grpo", made.config)
        plain, _ = advantages(trainer, "grpo", made.config)
        column = [row[0].item() for row in plain]  # every response has a first token
        weights, _ = reference_weights(
            data.batch["old_log_probs"].tolist(), column, data.batch["response_mask"].tolist(), list(uids_of(data))
        )
        expected = torch.tensor(weights, dtype=torch.float64) * plain
        error = (weighted.double() - expected).abs().max().item()
        assert error < 1e-5 and (weighted - plain).abs().max() > 0.1, error
        logged = log({**compute_data_metrics(batch=data, use_critic=False), "actor/entropy": 0.1, "actor/lr": 1e-3})
        assert logged["cw_grpo/covariance_before"] != 0 and "critic/score/mean" in logged
        recorded = [pq.read_table(record).num_rows for record in Path(folder).glob("tokens/*.parquet")]
        assert recorded == [int(data.batch["response_mask"].sum())] * (trainer == "legacy")
    print(f"{trainer}: weights of its own compute_advantage differ from a float64 loop by at most {error:.1e}")
    print(f"{trainer}: {sum(k.startswith('cw_grpo/') for k in logged)} metrics logged, {sum(recorded)} tokens recorded")

    make("algorithm.adv_estimator=grpo")
    assert run.current() is None
    direct = inspect.unwrap(ray_trainer.compute_advantage)(
        batch()[0], adv_estimator="grpo", config=made.config.algorithm
    )
    assert torch.equal(advantages(trainer, "grpo", made.config)[0], direct.batch["advantages"])
    assert log({"actor/entropy": 0.1}) == {"actor/entropy": 0.1}
    print(f"{trainer}: plain GRPO is untouched")

    for overrides in ((ESTIMATOR,), (LOSS,)):
        validate(*use_v1, "algorithm.adv_estimator=grpo", *overrides)
    for overrides in ((ESTIMATOR, LOSS), (ESTIMATOR, "+algorithm.cw_grpo.scope=rank")):
        try:
            validate(*use_v1, *overrides)
        except OptionsError:
            continue
        raise AssertionError(f"{overrides} passed validate_config")
    print(f"{trainer}: validate_config passes cw_grpo and refuses what cannot work")


def uids_of(data: DataProto) -> list[str]:
    return [str(uid) for uid in data.non_tensor_batch["uid"]]


def log(metrics: dict) -> dict:
    """What Tracking.log hands to a logger."""
    seen = []

    class Logger:
        def log(self, data: dict, step: int) -> None:
            seen.append(data)

    tracking = object.__new__(Tracking)
    tracking.logger = {"one": Logger()}
    tracking.log(metrics, step=1)
    tracking.logger = {}  # what older versions finish when it is collected
    return seen[0]


def validate(*overrides: str) -> None:
    verl_config.validate_config(config=composed(*overrides), use_reference_policy=False, use_critic=False)


def check_task_runners() -> None:
    """Every TaskRunner of main_ppo starts in a Ray worker; loaded as Ray sees it in __main__, so pickled by value."""
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    modules = ["verl.trainer.main_ppo", "verl.trainer.main_ppo_v0"]
    for module in modules:
        try:
            names = runpy.run_module(module, run_name="as_main")
        except ImportError:
            continue  # only some versions have main_ppo_v0
        for name, value in names.items():
            if "TaskRunner" not in name or name == "BaseTaskRunner":
                continue
            actor = value if hasattr(value, "remote") else ray.remote(num_cpus=1)(value)
            handle = actor.remote()
            ray.get(handle.__ray_ready__.remote(), timeout=120)
            ray.kill(handle)
            print(f"{module}.{name} starts in a Ray worker")
    ray.shutdown()


def main() -> None:
    logging.disable(logging.WARNING)
    print(f"verl {verl.__version__}")
    assert core_algos.get_adv_estimator_fn("cw_grpo").__module__ == "cw_plugin.verl_integration.estimator"
    assert core_algos.get_policy_loss_fn("cw_grpo").__module__ == "cw_plugin.verl_integration.loss"
    knows_v1 = "use_v1" in composed().trainer
    trainers = [("legacy", legacy_trainer, ("trainer.use_v1=False",) if knows_v1 else ())]
    if knows_v1:
        try:
            importlib.import_module("verl.trainer.ppo.v1.trainer_base")
        except ModuleNotFoundError:
            print("V1: this verl has none")
        else:
            trainers.append(("V1", v1_trainer, ("trainer.use_v1=True",)))
    for trainer, make, use_v1 in trainers:
        config = composed(ESTIMATOR, *use_v1)
        try:
            require_hooks(config)
        except HostError as error:
            print(f"{trainer}: refused: {error}")
            continue
        print(f"{trainer}: {len(hooks_of(config))} hooks in place")
        check_trainer(trainer, make, use_v1)
    check_task_runners()
    print("all is well")


if __name__ == "__main__":
    sys.exit(main())
