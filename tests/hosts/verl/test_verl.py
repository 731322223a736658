"""The plugin inside verl's own functions: trainers, registries, vanilla loss, checks of settings, task runners.

test_verl_releases.py runs this file on earlier releases, the nightly workflow on verl's main.
"""

import importlib.util
import inspect
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trainers
import verl
from interpreter import python
from omegaconf import OmegaConf
from pretend_device import DEVICE, Pretend, back, on_device
from ray import cloudpickle
from reference import reference_advantages
from trainers import CW_GRPO, GRPO, HAS_V1, LEGACY, LOSS, advantages, logged, trainer_batch, validate, weighted
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.config import ActorConfig, PolicyLossConfig

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.hosts.verl import current_run, hooks
from cw_plugin.hosts.verl.estimator import TrainerBatch, batch_of_trainer
from cw_plugin.records.read import read_tokens, tokens_of
from cw_plugin.weights import CovarianceStatistics

GEO_MEAN = "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean"
DISTILLATION = ["+distillation.enabled=True", "+distillation.distillation_loss.use_task_rewards=False"]
BYPASS = "algorithm.rollout_correction.bypass_mode=True"
OPTION = "+algorithm.cw_grpo."
ONE_RESPONSE = "actor_rollout_ref.rollout.n=1"
OF_ONE_RESPONSE = [LOSS, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"]
UNRECORDED = OPTION + "record_every=0"
NEEDS_V1 = pytest.mark.skipif(not HAS_V1, reason="this version of verl has no V1")


def v1_trainer(*overrides):
    """In place of the one that this process has."""
    current_run.begin(None)
    return trainers.v1_trainer(*overrides)


def legacy_trainer(*overrides):
    current_run.begin(None)
    return trainers.legacy_trainer(*overrides)


@pytest.fixture(params=[legacy_trainer, pytest.param(v1_trainer, marks=NEEDS_V1)])
def make(request, tmp_path):
    """Makes trainers of verl in this process, as in its task runner; one that uses cw_grpo is there."""
    trainer = request.param(CW_GRPO, UNRECORDED, f"trainer.default_local_dir={tmp_path}")
    yield request.param
    del trainer
    current_run.begin(None)


def batch(make, seed=0, outputs=1):
    """A step's batch, and its keys if the trainer is V1's."""
    data, keys = trainer_batch(seed, outputs=outputs)
    return data, keys if make is v1_trainer else None


def algorithm(norm=True, **cw_grpo):
    return OmegaConf.create({"norm_adv_by_std_in_grpo": norm, **({"cw_grpo": cw_grpo} if cw_grpo else {})})


@pytest.mark.parametrize(("norm", "outputs", "options"), [(True, 1, {}), (False, 3, {}), (True, 3, {"scope": "batch"})])
def test_estimator_in_the_trainer_is_grpo_times_the_reference_weights_and_with_kernel_none_grpo(
    make, norm, outputs, options
):
    for seed in range(2):  # two steps
        data, keys = batch(make, seed, outputs)
        config, none = algorithm(norm, **options), algorithm(norm, kernel="none", **options)
        grpo, ours = (advantages(estimator, data, keys, config) for estimator in ("grpo", "cw_grpo"))
        torch.testing.assert_close(ours.double(), weighted(data, grpo, **options), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(ours, grpo, atol=1e-2)
        assert torch.equal(advantages("cw_grpo", data, keys, none), grpo)
        data.batch["response_mask"] = data.batch["response_mask"].bfloat16()  # which may have any dtype
        assert torch.equal(advantages("cw_grpo", data, keys, config), ours)


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_other_estimators_are_untouched(make, estimator):
    """Beside a run of cw_grpo, and where there is none."""
    data, keys = batch(make)
    direct = advantages(estimator, data, keys, algorithm(), hooked=False)
    assert torch.equal(advantages(estimator, data, keys, algorithm()), direct)
    current_run.begin(None)
    assert torch.equal(advantages(estimator, data, keys, algorithm()), direct)


def test_a_name_that_is_taken_is_said_and_a_free_one_is_not(caplog):
    """Another cw_grpo in verl's registry stays there."""
    assert not hooks._warn_if_taken({}, len) and not hooks._warn_if_taken({"cw_grpo": len}, len)
    assert caplog.text == ""
    assert hooks._warn_if_taken({"cw_grpo": max}, len)
    assert "cw_grpo is already registered (<built-in function max>) and used as it is" in caplog.text


def of_registry(data, **given):
    """The registered estimator, called as verl calls one."""
    return core_algos.get_adv_estimator_fn("cw_grpo")(
        token_level_rewards=data.batch["token_level_rewards"],
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
        config=algorithm(),
        **given,
    )[0]


def test_log_probs_that_verl_passes_itself_win_over_the_hook(make):
    data, keys = batch(make)
    expected = advantages("cw_grpo", data, keys, algorithm())
    not_these = torch.full_like(data.batch["old_log_probs"], float("nan"))
    token = batch_of_trainer.set(TrainerBatch(not_these, keys, read_sequences=list))
    try:
        assert torch.equal(of_registry(data, old_log_probs=data.batch["old_log_probs"]), expected)
        assert torch.equal(of_registry(data, batch=data.batch), expected)
    finally:
        batch_of_trainer.reset(token)


def test_without_log_probs_or_a_trainer_that_is_known_it_refuses_instead_of_training_plain_grpo(make):
    """fully_async_policy's trainer, for example, constructs itself without RayPPOTrainer's __init__."""
    data, keys = batch(make)
    with pytest.raises(HostError, match=r"start verl\.trainer\.main_ppo"):
        of_registry(data)
    current_run.begin(None)
    with pytest.raises(HostError, match="does not know the trainer"):
        advantages("cw_grpo", data, keys, algorithm())


def test_a_second_trainer_with_cw_grpo_in_one_process_is_refused(make, tmp_path):
    first = make(CW_GRPO, f"trainer.default_local_dir={tmp_path}")
    with pytest.raises(HostError, match=rf"whose folder is {tmp_path}; start the second one in a process of its own"):
        trainers.legacy_trainer(CW_GRPO)
    first.itself = first  # a cycle, which only the collector finds
    del first
    trainers.legacy_trainer(CW_GRPO)


def test_a_run_is_not_resumed_under_another_method(make, tmp_path):
    """The folder has what verl leaves beside a checkpoint."""
    data, keys = batch(make)
    advantages("cw_grpo", data, keys, algorithm())
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    settings = CW_GRPO, f"trainer.default_local_dir={tmp_path}"
    make(*settings)
    for name, was, now in (("kernel", "gaussian", "none"), ("scope", "group", "batch")):
        with pytest.raises(OptionsError, match=rf"{name}='{now}' would resume the run in {tmp_path}.*{name}='{was}'"):
            make(*settings, f"{OPTION}{name}={now}")
        make(*settings, f"{OPTION}{name}={now}", "trainer.resume_mode=disable")


def test_a_nan_is_reported_with_where_it_comes_from_and_the_uid_of_its_prompt(make):
    for where, message in (
        ("old_log_probs", "log_probs.*7\\. It comes from the model's .* Their uids: {}"),
        ("token_level_rewards", r"advantages.* check the reward function\. Their uids: .*{}"),
    ):
        data, keys = batch(make)
        data.batch[where][7, 0] = float("nan")
        with pytest.raises(NonFiniteError, match=message.format(data.non_tensor_batch["uid"][7])):
            advantages("cw_grpo", data, keys, algorithm())
    arguments = loss_arguments()
    arguments["log_prob"] = arguments["log_prob"].detach().clone()
    arguments["log_prob"][1, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"log_probs: .*: 1\. It comes from the model's"):
        core_algos.get_policy_loss_fn("cw_grpo")(**arguments, config=actor_config())


def test_metrics_of_several_batches_in_a_step_are_merged_by_verls_rules(make):
    """verl merges the values of several updates by substrings of the name."""
    batches = [batch(make, seed) for seed in range(2)]
    given, seen = {"critic/score/mean": 1.0}, []
    for data, keys in batches:
        advantages("cw_grpo", data, keys, algorithm())
        seen.append(logged(given))
    for data, keys in batches:
        advantages("cw_grpo", data, keys, algorithm())
    merged = logged(given)
    assert given == {"critic/score/mean": 1.0} == logged(given)  # verl's own are left alone, nothing is told twice
    names = {f"cw_grpo/{name}" for name in (*CovarianceStatistics.__dataclass_fields__, "seconds")}
    assert set(merged) == set(seen[0]) == {"critic/score/mean", *names}
    for name in set(merged) - {"cw_grpo/seconds"}:
        rule = min if name.endswith("_min") else max if name.endswith("_max") else np.mean
        assert merged[name] == pytest.approx(rule([metrics[name] for metrics in seen])), name

    make(GRPO)
    assert current_run.current() is None and logged(given) is given


def loss_arguments(seed=0, rows=6, width=20):
    g = torch.Generator().manual_seed(seed)
    log_prob = (-torch.rand(rows, width, generator=g) * 3).requires_grad_()
    return {
        "old_log_prob": log_prob.detach() + 0.3 * torch.randn(rows, width, generator=g),
        "log_prob": log_prob,
        "advantages": 2 * torch.randn(rows, width, generator=g),
        "response_mask": torch.arange(width) < torch.randint(1, width + 1, (rows, 1), generator=g),
    }


def actor_config(loss_agg_mode="token-mean"):
    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, loss_agg_mode=loss_agg_mode, clip_ratio_c=1.5,
        policy_loss=PolicyLossConfig(loss_mode="cw_grpo"),
    )  # fmt: skip
    config.global_batch_info.update(dp_size=2, batch_num_tokens=100, global_batch_size=12, loss_scale_factor=7)
    return config


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("loss_agg_mode", ["token-mean", "seq-mean-token-sum-norm"])
def test_loss_is_vanilla_on_reweighted_advantages(make, loss_agg_mode, corrected):
    """The micro-batch is one group, whose advantages differ within a response."""
    arguments = loss_arguments()
    more = {"loss_agg_mode": loss_agg_mode, "config": actor_config(loss_agg_mode)}
    more["rollout_is_weights"] = torch.rand(6, 20) if corrected else None
    loss, metrics = core_algos.get_policy_loss_fn("cw_grpo")(**arguments, **more)

    given = (arguments[name] for name in ("log_prob", "advantages", "response_mask"))
    reweighted, groups = reference_advantages(*given, [0] * 6)
    ours = arguments | {"advantages": torch.tensor(reweighted)}
    expected, vanilla_metrics = core_algos.compute_policy_loss_vanilla(**ours, **more)
    gradients = [torch.autograd.grad(value, arguments["log_prob"])[0] for value in (loss, expected)]
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert metrics["actor/pg_clipfrac_lower"] > 0  # the dual clip took part
    assert {name: metrics[name] for name in vanilla_metrics} == pytest.approx(vanilla_metrics)
    assert metrics["cw_grpo/sigma"] == pytest.approx(groups[0]["sigma"], rel=1e-5)

    # verl puts actor/ before every metric of a loss; on the way to the loggers the hook takes it off again.
    verls = reduce_metrics(rename_dict({name: [value] for name, value in metrics.items()}, "actor/"))
    shown = logged(verls)
    assert shown["cw_grpo/sigma"] == verls["actor/cw_grpo/sigma"] and shown["actor/ppo_kl"] == verls["actor/ppo_kl"]
    assert not [name for name in shown if name.startswith("actor/cw_grpo")]


@pytest.mark.parametrize("scope", ["group", "batch"])
def test_on_a_device_the_estimator_is_that_of_the_cpu_and_refuses_in_its_words(make, scope):
    data, keys = batch(make)
    expected, metrics = advantages("cw_grpo", data, keys, algorithm(scope=scope)), logged({})
    there = DataProto.from_dict(tensors=on_device(dict(data.batch)), non_tensors=data.non_tensor_batch)
    with Pretend():
        found = advantages("cw_grpo", there, keys, algorithm(scope=scope))
        assert found.device == DEVICE and torch.equal(back(found), expected)
        assert logged({}) | {"cw_grpo/seconds": 0} == metrics | {"cw_grpo/seconds": 0}
        for where, what in (("old_log_probs", "log_probs"), ("token_level_rewards", "advantages")):
            there.batch[where][7, 0] = float("nan")
            with pytest.raises(NonFiniteError, match=f"^{what}: NaN or infinite at a valid token of .* Their uids: "):
                advantages("cw_grpo", there, keys, algorithm(scope=scope))
            there.batch[where][7, 0] = 0


@pytest.mark.parametrize("fault", ["", "NaN", "infinite advantage"])
def test_on_a_device_the_loss_is_that_of_the_cpu_and_refuses_in_its_words(make, fault):
    """Forward and backward."""
    results = []
    with Pretend():
        for place in (lambda value: value, on_device):
            arguments = {name: place(value.detach()) for name, value in loss_arguments().items()}
            if fault == "NaN":
                arguments["log_prob"][1, 0] = float("nan")
            if fault == "infinite advantage":
                arguments["advantages"][2, 0] = float("inf")
            arguments["log_prob"].requires_grad_()
            try:
                loss, metrics = core_algos.get_policy_loss_fn("cw_grpo")(**arguments, config=actor_config())
                (gradient,) = torch.autograd.grad(loss, arguments["log_prob"])
                results.append((back(loss).item(), back(gradient).tolist(), metrics["cw_grpo/sigma"]))
            except NonFiniteError as error:
                results.append(str(error))
    assert results[0] == results[1] and isinstance(results[0], str) == bool(fault)


def test_every_batch_of_a_step_that_is_due_is_recorded_with_text_and_prompts(tmp_path):
    """V1's separate_async computes advantages parameter_sync_step times within one global step."""
    trainer = legacy_trainer(CW_GRPO, f"trainer.default_local_dir={tmp_path}")
    batches = [trainer_batch(seed)[0] for seed in range(13)]
    for trainer.global_steps, data in zip((*[1] * 11, 2, 50), batches, strict=True):
        advantages("cw_grpo", data, None, algorithm())
    logged({})  # waits for the records
    records, kept = read_tokens(tmp_path), [*batches[:11], batches[12]]
    assert [record.step for record in records] == [*[1] * 11, 50]
    assert len(tokens_of(records)) == sum(int(data.batch["response_mask"].sum()) for data in kept)
    for record, data in zip(records, kept, strict=True):
        table, uids = record.table.to_pandas(), data.non_tensor_batch["uid"]
        row, rewards = table["row"].to_numpy(), data.batch["token_level_rewards"].sum(-1).numpy()
        assert len(table) == data.batch["response_mask"].sum()
        assert (table["text"].astype(int) == 100 * row + table["position"]).all()
        assert table["reward"].to_numpy() == pytest.approx(rewards[row])
        of_group = list(dict.fromkeys(uids))
        assert [of_group[group] for group in table["group"]] == uids[row].tolist()
        for group in set(table["group"]):  # the prompt of one of its rows; in a real batch they are the same
            seven, row = record.prompts[group].split()
            assert seven == "7" and uids[int(row)] == of_group[group]


@NEEDS_V1
@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_every_trainer_mode_of_v1_computes_advantages_through_the_hooks(mode):
    from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base

    for method in ("_compute_advantage", "fit"):
        assert inspect.getattr_static(get_trainer_cls(mode), method) is vars(trainer_base.PPOTrainer)[method]
    separate = (  # what separate_async asks of a configuration
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    )
    v1_trainer(CW_GRPO, f"trainer.v1.trainer_mode={mode}", *separate * (mode == "separate_async"))
    assert current_run.current() is not None


@pytest.mark.parametrize(
    "overrides",
    [
        [CW_GRPO, OPTION + "scope=batch", OPTION + "kernel=none"],
        [CW_GRPO, OPTION + "kernel=none", GEO_MEAN],
        [CW_GRPO, LEGACY],
        [GRPO, LEGACY],
        [GRPO, LOSS],
        [GRPO, LOSS, LEGACY],
        pytest.param([GRPO, LOSS, BYPASS], marks=NEEDS_V1),
        [GRPO, GEO_MEAN],
        [CW_GRPO, ONE_RESPONSE, OPTION + "scope=batch"],
        [CW_GRPO, ONE_RESPONSE, OPTION + "kernel=none"],
        [CW_GRPO, ONE_RESPONSE, "trainer.val_only=True"],
        [GRPO, ONE_RESPONSE],
        [*OF_ONE_RESPONSE, "algorithm.adv_estimator=reinforce_plus_plus", "algorithm.use_kl_in_reward=True"],
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
        ([CW_GRPO, ONE_RESPONSE], "every weight 1: this is plain GRPO; set .*rollout.n=12, or .*scope=batch"),
        ([*OF_ONE_RESPONSE, GRPO], "every weight 1; set it to 2 or more, or .*=cw_grpo"),
        ([*OF_ONE_RESPONSE, "algorithm.adv_estimator=remax"], "every weight 1; set it to 2 or more"),
        ([GRPO, LOSS, BYPASS, LEGACY], "bypass_mode=False"),
        ([CW_GRPO, "+rollout.nnodes=1"], "start verl.trainer.main_ppo"),  # as one_step_off_policy has it
        ([GRPO, LOSS, "+async_training.partial_rollout=True"], "start verl.trainer.main_ppo"),
        ([CW_GRPO, GEO_MEAN], "loss_mode=geo_mean averages .*loss_mode=vanilla"),
        ([CW_GRPO, *DISTILLATION], "use_task_rewards=False trains on the teacher alone, .*; set it to True"),
        ([GRPO, LOSS, *DISTILLATION], "use_task_rewards=False trains on the teacher alone"),
        ([CW_GRPO, OPTION + "sigma=2"], "sigma is not an option of cw_grpo; the options are scope, kernel"),
        ([CW_GRPO, OPTION + "scope=rank"], "scope='rank' is invalid; use group or batch"),
        ([CW_GRPO, OPTION + "kernel=laplace"], "kernel='laplace' is invalid; use one of gaussian, none"),
        ([CW_GRPO, OPTION + "record_every=-1"], "record_every=-1 is invalid; use a whole number"),
        ([CW_GRPO, OPTION + "record_every=2.5"], "use a whole number"),
        ([CW_GRPO, "+algorithm.cw_grpo=batch"], r"\+algorithm.cw_grpo.scope=\.\.\."),
        ([GRPO, LOSS, OPTION + "scope=batch"], "do nothing for policy_loss"),
        ([GRPO, OPTION + "kernel=none"], "do nothing for adv_estimator=grpo"),
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
