"""The estimator and the loss inside verl's own functions: trainer utilities, registries, vanilla loss."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
import trainers
from jaxtyping import TypeCheckError
from omegaconf import OmegaConf
from reference import reference_weights
from trainers import advantages, logged, trainer_batch, weighted
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import get_trainer_cls, trainer_base
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.config import ActorConfig, PolicyLossConfig

from cw_plugin.errors import HostError, NonFiniteError
from cw_plugin.reports.records import read_tokens
from cw_plugin.verl_integration import estimator, loss, run
from cw_plugin.verl_integration.estimator import TrainerBatch, batch_of_trainer
from cw_plugin.weights import reweight

CW_GRPO = "algorithm.adv_estimator=cw_grpo"
UNRECORDED = "+algorithm.cw_grpo.record_every=0"


def v1_trainer(*overrides):
    """In place of the one that this process has."""
    run.begin(None)
    return trainers.v1_trainer(*overrides)


def legacy_trainer(*overrides):
    run.begin(None)
    return trainers.legacy_trainer(*overrides)


@pytest.fixture(autouse=True)
def trainer():
    """A trainer of verl in this process, as in its task runner."""
    yield v1_trainer(CW_GRPO, UNRECORDED)
    run.begin(None)


def algorithm(norm=True, **cw_grpo):
    return OmegaConf.create({"norm_adv_by_std_in_grpo": norm, **({"cw_grpo": cw_grpo} if cw_grpo else {})})


@pytest.mark.parametrize(("norm", "outputs", "options"), [(True, 1, {}), (False, 3, {}), (True, 3, {"scope": "batch"})])
def test_estimator_in_the_trainer_is_grpo_times_the_reference_weights_and_with_kernel_none_grpo(norm, outputs, options):
    for seed in range(2):  # two steps
        data, keys = trainer_batch(seed, outputs=outputs)
        config, none = algorithm(norm, **options), algorithm(norm, kernel="none", **options)
        grpo, ours = (advantages(estimator, data, keys, config) for estimator in ("grpo", "cw_grpo"))
        torch.testing.assert_close(ours.double(), weighted(data, grpo, **options), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(ours, grpo, atol=1e-2)
        assert torch.equal(advantages("cw_grpo", data, keys, none), grpo)


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_other_estimators_are_untouched(estimator):
    data, keys = trainer_batch()
    through_hook = advantages(estimator, data, keys, algorithm())
    direct = inspect.unwrap(trainer_base.compute_advantage_for_multi_trajectories)(
        data.select_idxs(list(range(len(data)))), batch_keys=keys, adv_estimator=estimator, config=algorithm()
    )
    assert torch.equal(through_hook, direct.batch["advantages"])


def of_registry(data, **given):
    """The registered estimator, called as verl calls one."""
    return core_algos.get_adv_estimator_fn("cw_grpo")(
        token_level_rewards=data.batch["token_level_rewards"],
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
        config=algorithm(),
        **given,
    )[0]


def test_log_probs_that_verl_passes_itself_win_over_the_hook():
    data, keys = trainer_batch()
    expected = advantages("cw_grpo", data, keys, algorithm())
    not_these = torch.full_like(data.batch["old_log_probs"], float("nan"))
    token = batch_of_trainer.set(TrainerBatch(not_these, keys, sequences=list))
    try:
        assert torch.equal(of_registry(data, old_log_probs=data.batch["old_log_probs"]), expected)
        assert torch.equal(of_registry(data, batch=data.batch), expected)
    finally:
        batch_of_trainer.reset(token)


def test_without_log_probs_or_a_trainer_that_is_known_it_refuses_instead_of_training_plain_grpo():
    """fully_async_policy's trainer, for example, constructs itself without RayPPOTrainer's __init__."""
    data, keys = trainer_batch()
    with pytest.raises(HostError, match=r"start verl\.trainer\.main_ppo"):
        of_registry(data)
    run.begin(None)
    for keys_of_v1 in (keys, None):
        with pytest.raises(HostError, match="does not know the trainer"):
            advantages("cw_grpo", data, keys_of_v1, algorithm())


def test_a_second_trainer_with_cw_grpo_in_one_process_is_refused(trainer, tmp_path):
    first = legacy_trainer(CW_GRPO, f"trainer.default_local_dir={tmp_path}")
    with pytest.raises(HostError, match=rf"whose folder is {tmp_path}; start the second one in a process of its own"):
        trainers.legacy_trainer(CW_GRPO)
    first.itself = first  # a cycle, which only the collector finds
    del first
    trainers.legacy_trainer(CW_GRPO)


def test_the_legacy_trainers_function_gives_the_weights_of_v1s_with_a_mask_of_any_dtype():
    data, keys = trainer_batch()
    expected = advantages("cw_grpo", data, keys, algorithm())
    plain = advantages("grpo", data, keys, algorithm())
    data.batch["response_mask"] = data.batch["response_mask"].bfloat16()
    assert torch.equal(advantages("cw_grpo", data, keys, algorithm()), expected)
    legacy_trainer(CW_GRPO, UNRECORDED)
    assert torch.equal(advantages("cw_grpo", data, None, algorithm()), expected)
    assert torch.equal(advantages("cw_grpo", data, None, algorithm(kernel="none")), plain)


def test_a_nan_is_reported_with_where_it_comes_from_and_the_uid_of_its_prompt():
    for where, message in (
        ("old_log_probs", "log_probs.*7\\. It comes from the model's .* Their uids: {}"),
        ("token_level_rewards", r"advantages.* check the reward function\. Their uids: .*{}"),
    ):
        data, keys = trainer_batch()
        data.batch[where][7, 0] = float("nan")
        with pytest.raises(NonFiniteError, match=message.format(data.non_tensor_batch["uid"][7])):
            advantages("cw_grpo", data, keys, algorithm())
    arguments = loss_arguments()
    arguments["log_prob"] = arguments["log_prob"].detach().clone()
    arguments["log_prob"][1, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"log_probs: .*: 1\. It comes from the model's"):
        core_algos.get_policy_loss_fn("cw_grpo")(**arguments, config=actor_config())


@pytest.mark.parametrize("make", [v1_trainer, legacy_trainer])
def test_metrics_of_several_batches_in_a_step_are_merged_by_verls_rules(make):
    """verl merges the values of several updates by substrings of the name."""
    make(CW_GRPO, UNRECORDED)
    batches = [(data, keys if make is v1_trainer else None) for data, keys in map(trainer_batch, range(2))]
    given, seen = {"critic/score/mean": 1.0}, []
    for data, keys in batches:
        advantages("cw_grpo", data, keys, algorithm())
        seen.append(logged(given))
    for data, keys in batches:
        advantages("cw_grpo", data, keys, algorithm())
    merged = logged(given)
    assert given == {"critic/score/mean": 1.0} == logged(given)  # verl's own are left alone, nothing is told twice
    assert set(merged) == set(seen[0]) and len(merged) == 14
    for name in set(merged) - {"cw_grpo/seconds"}:
        rule = min if name.endswith("_min") else max if name.endswith("_max") else np.mean
        assert merged[name] == pytest.approx(rule([metrics[name] for metrics in seen])), name

    make("algorithm.adv_estimator=grpo")
    assert logged(given) is given


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
def test_loss_is_vanilla_on_reweighted_advantages(loss_agg_mode, corrected):
    """The micro-batch is one group, whose advantages differ within a response."""
    arguments = loss_arguments()
    more = {"loss_agg_mode": loss_agg_mode, "config": actor_config(loss_agg_mode)}
    more["rollout_is_weights"] = torch.rand(6, 20) if corrected else None
    loss, metrics = core_algos.get_policy_loss_fn("cw_grpo")(**arguments, **more)

    given = (arguments[name].tolist() for name in ("log_prob", "advantages", "response_mask"))
    weights, groups = reference_weights(*given, [0] * 6)
    ours = arguments["advantages"] * torch.tensor(weights)
    expected, vanilla_metrics = core_algos.compute_policy_loss_vanilla(**arguments | {"advantages": ours}, **more)
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


def test_every_batch_of_a_step_that_is_due_is_recorded_with_text_and_prompts(tmp_path):
    """V1's separate_async computes advantages parameter_sync_step times within one global step."""
    trainer = legacy_trainer(CW_GRPO, f"trainer.default_local_dir={tmp_path}")
    batches = [trainer_batch(seed)[0] for seed in range(4)]
    for trainer.global_steps, data in zip((1, 1, 2, 50), batches, strict=True):
        advantages("cw_grpo", data, None, algorithm())
    logged({})  # waits for the records
    records, kept = read_tokens(tmp_path), [batches[0], batches[1], batches[3]]
    assert [record.step for record in records] == [1, 1, 50]
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


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_every_trainer_mode_of_v1_computes_advantages_through_the_hooks(mode):
    for method in ("_compute_advantage", "fit"):
        assert inspect.getattr_static(get_trainer_cls(mode), method) is vars(trainer_base.PPOTrainer)[method]
    separate = (  # what separate_async asks of a configuration
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    )
    v1_trainer(CW_GRPO, f"trainer.v1.trainer_mode={mode}", *separate * (mode == "separate_async"))
    assert run.current() is not None


SHAPE, WIDER, ROWS = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2)


@pytest.mark.parametrize(
    ("function", "arguments", "wrong"),
    [
        (reweight, (SHAPE, WIDER, SHAPE), "advantages"),
        (reweight, (SHAPE.int(), ROWS, SHAPE), "log_probs"),
        (estimator.compute_cw_grpo_advantage, (SHAPE, WIDER.int(), None), "response_mask"),
        (loss.compute_policy_loss_cw_grpo, (SHAPE, SHAPE, ROWS, SHAPE.bool()), "advantages"),
    ],
)
def test_a_wrong_shape_raises_wherever_shapes_are_annotated(function, arguments, wrong):
    """Because conftest.py has them checked."""
    with pytest.raises(TypeCheckError, match=f"parameter '{wrong}'"):
        function(*arguments)
