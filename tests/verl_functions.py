"""Checks cw_plugin against the functions of the verl that is imported, whichever it is: no workers, no model, one Ray.

export VERL_USE_EXTERNAL_MODULES=cw_plugin.verl_integration.register
PYTHONPATH=A_VERL:. python -W ignore tests/verl_functions.py

A_VERL is a folder that holds the package verl: an unpacked wheel, or a checkout. verl up to 0.8 knows no entry points,
hence the variable. Prints one line for each check, and ends with exit code 1 at the first that fails.
test_verl_releases.py runs it on released wheels; the nightly workflow runs it on verl's main.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import runpy
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import ray
import torch
import verl
from trainers import advantages, composed, legacy_trainer, logged, trainer_batch, v1_trainer, validate, weighted
from verl.trainer.ppo import core_algos, ray_trainer

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.verl_integration import run
from cw_plugin.verl_integration.hooks import hooks_of, require_hooks

ESTIMATOR = "algorithm.adv_estimator=cw_grpo"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode=cw_grpo"


def check_trainer(trainer: str, make: object, use_v1: tuple[str, ...]) -> None:
    """Construction, advantages, metrics and record of one trainer."""
    data, keys = trainer_batch()
    keys = keys if trainer == "V1" else None
    with tempfile.TemporaryDirectory() as folder:
        made = make(ESTIMATOR, f"trainer.default_local_dir={folder}")
        made.global_steps = 1 if trainer == "legacy" else 2  # V1's texts come from TransferQueue, which is not running
        algorithm = made.config.algorithm
        ours, plain = (advantages(estimator, data, keys, algorithm) for estimator in ("cw_grpo", "grpo"))
        error = (ours.double() - weighted(data, plain)).abs().max().item()
        assert error < 1e-5 and (ours - plain).abs().max() > 0.1, error
        metrics = logged({"actor/lr": 1e-3})
        assert metrics["cw_grpo/covariance_before"] != 0 and metrics["actor/lr"] == 1e-3
        recorded = [pq.read_table(record).num_rows for record in Path(folder).glob("tokens/*.parquet")]
        assert recorded == [int(data.batch["response_mask"].sum())] * (trainer == "legacy")
    print(f"{trainer}: weights differ from a float64 loop by at most {error:.1e}; {sum(recorded)} tokens recorded")

    make("algorithm.adv_estimator=grpo")
    assert run.current() is None
    direct = inspect.unwrap(ray_trainer.compute_advantage)(data, adv_estimator="grpo", config=algorithm)
    assert torch.equal(plain, direct.batch["advantages"])
    assert logged({"actor/entropy": 0.1}) == {"actor/entropy": 0.1}

    for override in (ESTIMATOR, LOSS):
        validate(*use_v1, "algorithm.adv_estimator=grpo", override)
    for override in (LOSS, "+algorithm.cw_grpo.scope=rank"):
        try:
            validate(*use_v1, ESTIMATOR, override)
        except OptionsError:
            continue
        raise AssertionError(f"{override} passed validate_config")
    print(f"{trainer}: validate_config passes cw_grpo and refuses what cannot work")


def check_task_runners() -> None:
    """Every TaskRunner of main_ppo starts in a Ray worker; loaded as Ray sees it in __main__, so pickled by value."""
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for module in ("verl.trainer.main_ppo", "verl.trainer.main_ppo_v0"):
        if importlib.util.find_spec(module) is None:
            continue  # only some versions have main_ppo_v0
        for name, value in runpy.run_module(module, run_name="as_main").items():
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
    if knows_v1 and importlib.util.find_spec("verl.trainer.ppo.v1"):
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
