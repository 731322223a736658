"""Which settings verl's own check lets pass and refuses, and that hooks, names and task runners are in place.

test_verl_releases.py runs this file on earlier releases, the nightly workflow on verl's main.
"""

import pytest

pytest.importorskip("verl")

import importlib.util
import inspect
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import verl
from interpreter import python
from ray import cloudpickle
from trainers import CW_GRPO, GRPO, LEGACY, LOSS, NEEDS_V1, OPTION, validate
from verl.trainer.ppo import ray_trainer

from cw_plugin.errors import OptionsError
from cw_plugin.hosts.verl import hooks, register
from cw_plugin.hosts.verl.estimator import compute_cw_grpo_advantage

GEO_MEAN = "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"
DISTILLATION = ["+distillation.enabled=True", "+distillation.distillation_loss.use_task_rewards=False"]
BYPASS = "algorithm.rollout_correction.bypass_mode=True"
ONE_RESPONSE = "actor_rollout_ref.rollout.n=1"
OF_A_RESPONSE = ("grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "gpg")
OF_ONE_RESPONSE = [LOSS, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"]


def test_a_name_that_is_taken_is_said_and_a_free_one_is_not(caplog):
    """Another cw_grpo in verl's registry stays there."""
    assert not hooks._warn_if_taken({}, len) and not hooks._warn_if_taken({"cw_grpo": len}, len)
    assert caplog.text == ""
    assert hooks._warn_if_taken({"cw_grpo": max}, len)
    assert "cw_grpo is already registered (<built-in function max>) and used as it is" in caplog.text
    registered: list[object] = []
    verl_with_its_loss = SimpleNamespace(
        ADV_ESTIMATOR_REGISTRY={},
        POLICY_LOSS_REGISTRY={"cw_grpo": max},
        register_adv_est=lambda name: registered.append,
        register_policy_loss=lambda name: registered.append,
    )
    hooks._register_names(verl_with_its_loss)
    assert registered == [compute_cw_grpo_advantage]


def test_a_second_registration_hooks_nothing_again():
    """Else the weights would multiply the advantages twice."""
    importlib.reload(register)
    hooked = ray_trainer.RayPPOTrainer.__init__
    assert hasattr(hooked, hooks._MARK) and not hasattr(hooked.__wrapped__, hooks._MARK)


@NEEDS_V1
@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_every_trainer_mode_of_v1_has_the_hooks(mode):
    from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base

    for method in ("_compute_advantage", "fit"):
        assert inspect.getattr_static(get_trainer_cls(mode), method) is vars(trainer_base.PPOTrainer)[method]


@pytest.mark.parametrize(
    "overrides",
    [
        [CW_GRPO, OPTION + "scope=batch", OPTION + "weights=none"],
        [CW_GRPO, OPTION + "weights=none", GEO_MEAN],
        [GRPO, LOSS],
        [GRPO, LOSS, LEGACY],
        pytest.param([GRPO, LOSS, BYPASS], marks=NEEDS_V1),
        [GRPO, GEO_MEAN],
        [GRPO, *DISTILLATION],
        [CW_GRPO, DISTILLATION[0]],  # by default beside the rewards
        [CW_GRPO, DISTILLATION[1]],
        [CW_GRPO, ONE_RESPONSE, OPTION + "scope=batch"],
        [CW_GRPO, ONE_RESPONSE, OPTION + "weights=none"],
        [CW_GRPO, ONE_RESPONSE, "trainer.val_only=True"],
        [GRPO, ONE_RESPONSE],
        [*OF_ONE_RESPONSE, "algorithm.adv_estimator=reinforce_plus_plus", "algorithm.use_kl_in_reward=True"],
        [*OF_ONE_RESPONSE, "algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.9"],
        [*OF_ONE_RESPONSE, GRPO, "actor_rollout_ref.actor.use_dynamic_bsz=True"],
        [*OF_ONE_RESPONSE, GRPO, "trainer.val_only=True"],
    ],
)
def test_valid_settings_pass(overrides):
    validate(*overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([CW_GRPO, LOSS], "loss_mode=vanilla .* or algorithm.adv_estimator=grpo"),
        (
            [CW_GRPO, ONE_RESPONSE],
            "one response in a prompt group, and weights=gaussian .*; set .*rollout.n=12, or .*scope=batch",
        ),
        *[
            ([CW_GRPO, ONE_RESPONSE, f"{OPTION}weights={name}"], f"one response in a prompt group, and weights={name} ")
            for name in ("state", "clip_cov", "drop_top_cov", "eda", "empg")
        ],
        ([CW_GRPO, OPTION + "weights=ar", OPTION + "settings.alpha=2"], "cw_grpo: settings: alpha=2 is .* 0 to 1"),
        ([CW_GRPO, OPTION + "weights=ar", OPTION + "settings.beta=0.3"], "has no setting 'beta'; it has alpha"),
        *[
            ([CW_GRPO, f"{OPTION}estimator={name}"], f"estimator={name} does not give .*; use one of grpo, .*rloo")
            for name in ("gae", "opo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "unknown")
        ],
        ([*OF_ONE_RESPONSE, GRPO], "every weight 1; set it to 2 or more, or .*=cw_grpo"),
        *[
            ([*OF_ONE_RESPONSE, f"algorithm.adv_estimator={name}"], "every weight 1; set it to 2 or more")
            for name in (*OF_A_RESPONSE, "gdpo", "opo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
        ],
        ([GRPO, LOSS, BYPASS, LEGACY], "bypass_mode=False"),
        ([GRPO, LOSS, BYPASS, "+rollout.nnodes=1"], "bypass_mode=False"),  # as one_step_off_policy has it
        ([CW_GRPO, OPTION + "weights=steer", BYPASS, "+rollout.nnodes=1"], "needs the entropy .*; set it to False"),
        ([CW_GRPO, GEO_MEAN], "loss_mode=geo_mean averages .*loss_mode=vanilla"),
        *[
            ([*method, *DISTILLATION], "use_task_rewards=False trains on the teacher alone, .*; set it to True")
            for method in ([CW_GRPO], [GRPO, LOSS])
        ],
        ([CW_GRPO, OPTION + "sigma=2"], "sigma is not an option of cw_grpo; the options are scope, weights"),
        ([CW_GRPO, OPTION + "scope=rank"], "scope='rank' is invalid; use group or batch"),
        ([CW_GRPO, OPTION + "record_every=2.5"], "use a whole number"),
        ([CW_GRPO, "+algorithm.cw_grpo=batch"], r"\+algorithm.cw_grpo.scope=\.\.\."),
        ([GRPO, LOSS, OPTION + "scope=batch"], "do nothing for policy_loss"),
        ([GRPO, LOSS, OPTION + "weights=steer"], "do nothing for policy_loss"),
        ([GRPO, OPTION + "weights=none"], "do nothing for adv_estimator=grpo"),
        (
            [CW_GRPO, OPTION + "weights=steer", BYPASS],
            "needs the entropy .*bypass_mode=True does not .*; set it to False, or",
        ),
        ([CW_GRPO, OPTION + "weights=steer", BYPASS, LEGACY], "weights='steer' needs the entropy of each position"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_the_way_to_fix_them(overrides, message):
    with pytest.raises(OptionsError, match=message):
        validate(*overrides)


@pytest.mark.skipif(Path(verl.__file__).is_relative_to(sys.prefix), reason="end-to-end runs start the installed verl's")
def test_every_task_runner_of_main_ppo_can_be_sent_to_a_ray_worker(tmp_path):
    """Loaded as Ray sees it in __main__, so pickled by value."""
    modules = [f"verl.trainer.{name}" for name in ("main_ppo", "main_ppo_v0")]
    found = [runpy.run_module(module, run_name="as_main") for module in modules if importlib.util.find_spec(module)]
    runners = [module[name] for module in found for name in module if "TaskRunner" in name and name != "BaseTaskRunner"]
    classes = [getattr(runner, "__ray_metadata__", SimpleNamespace(modified_class=runner)) for runner in runners]
    (tmp_path / "sent").write_bytes(cloudpickle.dumps([each.modified_class for each in classes]))
    code = "import sys; from ray import cloudpickle; print(*cloudpickle.load(open(sys.argv[1], 'rb')))"
    plugin = {"VERL_USE_EXTERNAL_MODULES": "cw_plugin.hosts.verl.register"}
    result = python("-c", code, tmp_path / "sent", **plugin)
    assert result.stdout.count("as_main.") == len(runners) >= len(found) > 0, result.stderr
