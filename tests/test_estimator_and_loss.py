"""The estimator and the loss inside verl's own functions: trainer utilities, registries, vanilla loss."""

from __future__ import annotations

import inspect
import uuid

import numpy as np
import pytest
import torch
import trainers
from omegaconf import OmegaConf
from reference import reference_weights
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.tracking import Tracking
from verl.workers.config import ActorConfig, PolicyLossConfig

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.reports.records import read_tokens
from cw_plugin.verl_integration import run
from cw_plugin.verl_integration.estimator import TrainerBatch, batch_of_trainer, compute_cw_grpo_advantage
from cw_plugin.weights import reweight


def trainer_batch(seed=0, prompts=6, sessions=4, width=30, outputs=1):
    """A step's batch as verl's V1 trainer holds it after balancing: rows of a group scattered, one padding row."""
    g = torch.Generator().manual_seed(seed)
    keys = []
    for _ in range(prompts):
        uid = str(uuid.UUID(int=torch.randint(2**62, (1,), generator=g).item()))
        keys += [f"{uid}_{s}_{o}" for s in range(sessions) for o in range(outputs)]
    keys = [keys[i] for i in torch.randperm(len(keys), generator=g)]
    keys.insert(3, f"pad{'0' * 29}_0_0")
    rows = len(keys)
    lengths = torch.randint(2, width + 1, (rows,), generator=g)
    mask = (torch.arange(width) < lengths[:, None]).long()
    mask[5, 1] = 0  # a tool's output within a response
    mask[3] = 0
    rewards = torch.zeros(rows, width)
    rewards[torch.arange(rows), lengths - 1] = torch.randint(0, 3, (rows,), generator=g).float()
    log_probs = -torch.rand(rows, width, generator=g).exp().sub(1).pow(3) * mask
    uids = np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)
    tensors = {"response_mask": mask, "token_level_rewards": rewards, "old_log_probs": log_probs}
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids}), keys


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
    yield v1_trainer("algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.record_every=0")
    run.begin(None)


def algorithm(**cw_grpo):
    return OmegaConf.create({"norm_adv_by_std_in_grpo": True, **({"cw_grpo": cw_grpo} if cw_grpo else {})})


def advantages(estimator, data, keys, config):
    """As PPOTrainer._compute_advantage and RayPPOTrainer.fit (no keys) call it, through the names that they hold."""
    compute, of_v1 = ray_trainer.compute_advantage, {}
    if keys is not None:
        compute, of_v1 = trainer_base.compute_advantage_for_multi_trajectories, {"batch_keys": keys}
    result = compute(
        DataProto.from_dict(tensors=dict(data.batch.clone()), non_tensors=dict(data.non_tensor_batch)),
        **of_v1,
        adv_estimator=estimator,
        gamma=1.0,
        lam=1.0,
        num_repeat=4,
        norm_adv_by_std_in_grpo=config.get("norm_adv_by_std_in_grpo", True),
        config=config,
    )
    return result.batch["advantages"], result.batch["returns"]


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("norm", [True, False])
def test_estimator_in_the_trainer_is_grpo_times_the_reference_weights(norm, outputs):
    data, keys = trainer_batch(outputs=outputs)
    config = algorithm()
    config.norm_adv_by_std_in_grpo = norm
    grpo, _ = advantages("grpo", data, keys, config)
    weighted, returns = advantages("cw_grpo", data, keys, config)
    mask = data.batch["response_mask"]
    of_response = [row[row != 0][0].item() if (row != 0).any() else 0.0 for row in grpo]
    weights, _ = reference_weights(
        data.batch["old_log_probs"].tolist(), of_response, mask.tolist(), data.non_tensor_batch["uid"]
    )
    expected = torch.tensor(weights, dtype=torch.float64) * grpo
    torch.testing.assert_close(weighted.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(weighted, returns)
    assert not torch.allclose(weighted, grpo, atol=1e-2)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_kernel_none_is_verls_grpo_bit_for_bit(norm, outputs, seed):
    data, keys = trainer_batch(seed, outputs=outputs)
    config = algorithm(kernel="none")
    config.norm_adv_by_std_in_grpo = norm
    assert torch.equal(advantages("cw_grpo", data, keys, config)[0], advantages("grpo", data, keys, config)[0])


def test_groups_of_one_behave_as_under_grpo():
    data, keys = trainer_batch(sessions=1)
    grpo, _ = advantages("grpo", data, keys, algorithm())
    weighted, _ = advantages("cw_grpo", data, keys, algorithm())
    torch.testing.assert_close(weighted, grpo)  # one response has one advantage, so sigma = 0 and w = 1


def test_scope_batch_normalises_over_the_batch():
    data, keys = trainer_batch()
    weighted, _ = advantages("cw_grpo", data, keys, algorithm(scope="batch"))
    grpo, _ = advantages("grpo", data, keys, algorithm())
    column = grpo.abs().amax(-1) * grpo.sum(-1).sign()
    mask = data.batch["response_mask"]
    weights, _ = reference_weights(
        data.batch["old_log_probs"].tolist(), column.tolist(), mask.tolist(), ["all"] * len(mask)
    )
    torch.testing.assert_close(
        weighted.double(), torch.tensor(weights, dtype=torch.float64) * grpo, rtol=1e-5, atol=1e-5
    )


def test_other_estimators_are_untouched():
    data, keys = trainer_batch()
    for estimator in ("grpo", "rloo", "reinforce_plus_plus_baseline"):
        through_hook = advantages(estimator, data, keys, algorithm())[0]
        direct = inspect.unwrap(trainer_base.compute_advantage_for_multi_trajectories)(
            data.select_idxs(list(range(len(data)))), batch_keys=keys, adv_estimator=estimator, config=algorithm()
        )
        assert torch.equal(through_hook, direct.batch["advantages"])


@pytest.mark.parametrize("how", ["old_log_probs", "batch"])
def test_log_probs_that_verl_passes_itself_win_over_the_hook(how):
    data, keys = trainer_batch()
    arguments = {
        "token_level_rewards": data.batch["token_level_rewards"],
        "response_mask": data.batch["response_mask"],
        "index": data.non_tensor_batch["uid"],
        "config": algorithm(),
    }
    expected, _ = advantages("cw_grpo", data, keys, algorithm())
    not_these = torch.full_like(data.batch["old_log_probs"], float("nan"))
    token = batch_of_trainer.set(TrainerBatch(not_these, keys, sequences=list))
    try:
        passed = data.batch["old_log_probs"] if how == "old_log_probs" else data.batch
        native, _ = core_algos.get_adv_estimator_fn("cw_grpo")(**arguments, **{how: passed})
    finally:
        batch_of_trainer.reset(token)
    assert torch.equal(native, expected)


def test_without_log_probs_the_estimator_refuses_instead_of_training_plain_grpo():
    data, _ = trainer_batch()
    arguments = (data.batch["token_level_rewards"], data.batch["response_mask"], data.non_tensor_batch["uid"])
    with pytest.raises(HostError, match=r"start verl\.trainer\.main_ppo"):
        core_algos.get_adv_estimator_fn("cw_grpo")(*arguments, config=algorithm())


def test_a_trainer_that_is_not_known_is_refused():
    """Such as fully_async_policy's, which constructs itself without RayPPOTrainer's __init__."""
    run.begin(None)
    data, keys = trainer_batch()
    for keys_of_v1 in (keys, None):
        with pytest.raises(HostError, match="does not know the trainer"):
            advantages("cw_grpo", data, keys_of_v1, algorithm())


def test_a_second_trainer_with_cw_grpo_in_one_process_is_refused(trainer, tmp_path):
    """Its steps would be recorded in the first one's folder, or the first one's in its own."""
    first = legacy_trainer("algorithm.adv_estimator=cw_grpo", f"trainer.default_local_dir={tmp_path}")
    with pytest.raises(HostError, match=rf"whose folder is {tmp_path}; start the second one in a process of its own"):
        trainers.legacy_trainer("algorithm.adv_estimator=cw_grpo")
    assert run.current().folder == tmp_path
    first.itself = first  # a cycle, which only the collector finds
    del first
    trainers.legacy_trainer("algorithm.adv_estimator=cw_grpo")


def test_a_bfloat16_mask_passes_through_verls_function():
    data, keys = trainer_batch()
    expected, _ = advantages("cw_grpo", data, keys, algorithm())
    for make, keys_of in ((v1_trainer, keys), (legacy_trainer, None)):
        make("algorithm.adv_estimator=cw_grpo")
        half, _ = trainer_batch()
        half.batch["response_mask"] = half.batch["response_mask"].bfloat16()
        assert torch.equal(advantages("cw_grpo", half, keys_of, algorithm())[0], expected)


def test_the_legacy_trainers_function_gives_the_weights_of_v1s():
    data, keys = trainer_batch()
    expected, _ = advantages("cw_grpo", data, keys, algorithm())
    legacy_trainer("algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.record_every=0")
    weighted, returns = advantages("cw_grpo", data, None, algorithm())
    assert torch.equal(weighted, expected) and torch.equal(weighted, returns)
    plain = advantages("grpo", data, None, algorithm())[0]
    assert torch.equal(advantages("cw_grpo", data, None, algorithm(kernel="none"))[0], plain)
    assert not torch.allclose(weighted, plain, atol=1e-2)


def test_a_nan_is_reported_with_where_it_comes_from_and_the_uid_of_its_prompt():
    data, keys = trainer_batch()
    uid = data.non_tensor_batch["uid"][7]
    data.batch["old_log_probs"][7, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=f"log_probs.*7\\. It comes from the actor's .* Their uids: {uid}"):
        advantages("cw_grpo", data, keys, algorithm())
    data, keys = trainer_batch()
    data.batch["token_level_rewards"][7, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=rf"advantages.* check the reward function\. Their uids: .*{uid}"):
        advantages("cw_grpo", data, keys, algorithm())
    arguments = loss_arguments()
    arguments["log_prob"] = arguments["log_prob"].detach().clone()
    arguments["log_prob"][1, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"log_probs of a micro-batch.*: 1\. It comes from the actor's"):
        core_algos.get_policy_loss_fn("cw_grpo")(**arguments, config=actor_config())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 2.0}, "sigma is not an option of cw_grpo; the options are scope, kernel, record_every"),
        ({"scope": "rank"}, "scope='rank' is invalid; use group or batch"),
        ({"kernel": "laplace"}, "kernel='laplace' is invalid; use one of gaussian, none"),
        ({"record_every": -1}, "record_every=-1 is invalid; use a whole number"),
        ({"record_every": 2.5}, "use a whole number"),
    ],
)
def test_unknown_options_list_the_valid_ones(options, message):
    data, keys = trainer_batch()
    with pytest.raises(OptionsError, match=message):
        advantages("cw_grpo", data, keys, algorithm(**options))


def logged(metrics, step=1):
    """What verl's loggers are given for ``metrics``: through Tracking.log, to its "file" logger."""
    seen = []

    class Logger:
        def log(self, data, step):
            seen.append(data)

    tracking = object.__new__(Tracking)
    tracking.logger = {"one": Logger()}
    tracking.log(metrics, step=step)
    return seen[0]


@pytest.mark.parametrize("make", [v1_trainer, legacy_trainer])
def test_metrics_of_several_batches_in_a_step_are_merged_by_verls_rules(make):
    """verl merges the values of several updates by substrings of the name."""
    make("algorithm.adv_estimator=cw_grpo", "+algorithm.cw_grpo.record_every=0")
    batches = [trainer_batch(seed) for seed in range(2)]
    seen = []
    for data, keys in batches:
        advantages("cw_grpo", data, keys if make is v1_trainer else None, algorithm())
        seen.append(logged({"critic/score/mean": 1.0}))
    for data, keys in batches:
        advantages("cw_grpo", data, keys if make is v1_trainer else None, algorithm())
    given = {"critic/score/mean": 1.0}
    merged = logged(given)
    assert (
        given == {"critic/score/mean": 1.0} == logged(given)
    )  # the trainer's own are left alone, nothing is told twice
    assert set(merged) == set(seen[0]) and len(merged) == 14
    for name in set(merged) - {"cw_grpo/seconds"}:
        values = [metrics[name] for metrics in seen]
        rule = min if name.endswith("_min") else max if name.endswith("_max") else np.mean
        assert merged[name] == pytest.approx(rule(values)), name


@pytest.mark.parametrize("make", [v1_trainer, legacy_trainer])
def test_a_run_without_cw_grpo_logs_what_it_logged(make):
    make("algorithm.adv_estimator=grpo")
    metrics = {"actor/entropy": 0.1, "actor/lr": 1.0}
    assert logged(metrics) is metrics


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


AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@pytest.mark.parametrize("loss_agg_mode", AGGREGATIONS)
@pytest.mark.parametrize("corrected", [False, True])
def test_loss_is_vanilla_on_reweighted_advantages(loss_agg_mode, corrected):
    arguments = loss_arguments()
    config = actor_config(loss_agg_mode)
    is_weights = torch.rand(6, 20) if corrected else None
    loss, metrics = core_algos.get_policy_loss_fn("cw_grpo")(
        **arguments, loss_agg_mode=loss_agg_mode, config=config, rollout_is_weights=is_weights
    )
    (gradient,) = torch.autograd.grad(loss, arguments["log_prob"])

    # The equations once more, over the micro-batch as one group, in float64.
    mask = arguments["response_mask"]
    x, a = arguments["log_prob"].detach().double(), arguments["advantages"].double()
    c = (x - x[mask].mean()) * (a - a[mask].mean())
    w = torch.exp(-c.square() / (2 * c[mask].var(unbiased=False)))
    w = w * mask.sum() / w[mask].sum()
    expected, vanilla_metrics = core_algos.compute_policy_loss_vanilla(
        **{**arguments, "advantages": (w * a * mask).float()},
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=is_weights,
    )
    (expected_gradient,) = torch.autograd.grad(expected, arguments["log_prob"])
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    assert metrics["actor/pg_clipfrac_lower"] > 0  # the dual clip took part
    assert {k: metrics[k] for k in vanilla_metrics} == pytest.approx(vanilla_metrics)
    assert metrics["cw_grpo/covariance_before"] == pytest.approx(c[mask].mean().item(), rel=1e-4)


def test_loss_equals_the_estimator_when_a_micro_batch_is_one_group_and_on_policy():
    """Where the two meet: one prompt group per micro-batch, current policy = old policy."""
    data, _ = trainer_batch(prompts=1, sessions=6)
    keep = [i for i, uid in enumerate(data.non_tensor_batch["uid"]) if not uid.startswith("pad")]
    data = data.select_idxs(keep)
    mask, log_probs = data.batch["response_mask"], data.batch["old_log_probs"]
    uids = data.non_tensor_batch["uid"]
    grpo, _ = core_algos.compute_grpo_outcome_advantage(data.batch["token_level_rewards"], mask, uids)
    weighted, _ = compute_cw_grpo_advantage(data.batch["token_level_rewards"], mask, uids, old_log_probs=log_probs)
    config = actor_config()
    common = {"old_log_prob": log_probs, "log_prob": log_probs, "response_mask": mask.bool(), "config": config}
    by_loss, _ = core_algos.get_policy_loss_fn("cw_grpo")(**common, advantages=grpo)
    by_estimator, _ = core_algos.get_policy_loss_fn("vanilla")(**common, advantages=weighted)
    torch.testing.assert_close(by_loss, by_estimator)


def test_loss_metrics_are_renamed_on_their_way_to_the_loggers():
    """verl prefixes every policy-loss metric with actor/; the hook on Tracking.log takes it off again."""
    _, loss_metrics = core_algos.get_policy_loss_fn("cw_grpo")(**loss_arguments(), config=actor_config())
    metrics = reduce_metrics(rename_dict({k: [v] for k, v in loss_metrics.items()}, "actor/"))
    shown = logged(metrics)
    assert shown["cw_grpo/sigma"] == metrics["actor/cw_grpo/sigma"]
    assert not [name for name in shown if name.startswith("actor/cw_grpo")]
    assert shown["actor/ppo_kl"] == metrics["actor/ppo_kl"]


def test_weights_do_not_depend_on_which_rows_share_a_call_when_groups_are_whole():
    """A batch computed at once, or group by group: the same weights. Sharding by whole groups cannot show."""
    data, _ = trainer_batch(prompts=8, sessions=5, width=200)
    uids, mask, x = data.non_tensor_batch["uid"], data.batch["response_mask"], data.batch["old_log_probs"]
    a = torch.randn(len(uids), generator=torch.Generator().manual_seed(1))
    numbers = {uid: i for i, uid in enumerate(dict.fromkeys(uids))}
    at_once, _ = reweight(x, a, mask, torch.tensor([numbers[uid] for uid in uids]))
    for uid in numbers:
        rows = [i for i, other in enumerate(uids) if other == uid]
        alone, _ = reweight(x[rows], a[rows], mask[rows])
        torch.testing.assert_close(alone, at_once[rows], rtol=1e-6, atol=1e-7)


def with_sequences(data):
    rows, time = data.batch["response_mask"].shape
    data.batch["responses"] = 100 * torch.arange(rows)[:, None] + torch.arange(time)
    data.batch["prompts"] = torch.stack([torch.full((rows,), 7), torch.arange(rows)], 1)
    return data


def test_a_step_of_several_batches_records_them_all(tmp_path):
    """V1's separate_async computes advantages parameter_sync_step times within one global step."""
    trainer = legacy_trainer("algorithm.adv_estimator=cw_grpo", f"trainer.default_local_dir={tmp_path}")
    recorded = []
    for step, seed in ((1, 1), (1, 2), (2, 4), (50, 3)):
        trainer.global_steps = step
        data = with_sequences(trainer_batch(seed)[0])
        advantages("cw_grpo", data, None, algorithm())
        recorded.append(int(data.batch["response_mask"].sum()))
    logged({})  # waits for the records
    tokens = [(record.step, record.table.num_rows) for record in read_tokens(tmp_path)]
    assert tokens == [(1, recorded[0]), (1, recorded[1]), (50, recorded[3])]


def test_under_the_legacy_trainer_tokens_get_their_text_and_prompt(tmp_path):
    trainer = legacy_trainer("algorithm.adv_estimator=cw_grpo", f"trainer.default_local_dir={tmp_path}")
    trainer.global_steps = 1
    data = with_sequences(trainer_batch()[0])
    advantages("cw_grpo", data, None, algorithm())
    logged({})  # waits for the record
    (record,) = read_tokens(tmp_path)
    uids = list(dict.fromkeys(data.non_tensor_batch["uid"]))
    rewards = data.batch["token_level_rewards"].sum(-1)
    for token in record.table.to_pylist():
        row = token["row"]
        assert token["text"] == str(100 * row + token["position"]) and token["reward"] == pytest.approx(
            rewards[row].item()
        )
        assert uids[token["group"]] == data.non_tensor_batch["uid"][row]
    assert set(record.prompts) == set(record.table["group"].to_pylist())
    for group, prompt in record.prompts.items():  # that of one of its rows; in a real batch they are the same
        seven, row = prompt.split()
        assert seven == "7" and data.non_tensor_batch["uid"][int(row)] == uids[group]


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_every_trainer_mode_of_v1_computes_advantages_through_the_hooks(mode):
    """No mode brings a computation of its own, so that what is shown for one holds for all."""
    from verl.trainer.ppo.v1 import get_trainer_cls

    trainer = get_trainer_cls(mode)
    for method in ("_compute_advantage", "fit"):
        assert inspect.getattr_static(trainer, method) is vars(trainer_base.PPOTrainer)[method]
    separate = (  # what separate_async asks of a configuration
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    )
    v1_trainer(
        "algorithm.adv_estimator=cw_grpo", f"trainer.v1.trainer_mode={mode}", *separate * (mode == "separate_async")
    )
    assert run.current() is not None
    run.begin(None)
