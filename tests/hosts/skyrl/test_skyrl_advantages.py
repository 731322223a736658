"""The advantages in SkyRL's own trainers, batch and loss functions, on CPU tensors.

test_skyrl_releases.py runs this file.
"""

import pytest

pytest.importorskip("skyrl")

import asyncio
import json
import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import golden
import loguru
import torch
from pyarrow import parquet
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimator, PolicyLossRegistry, PolicyLossType
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer, GeneratedOutputGroup
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl_program import Halves
from skyrl_trainers import ALGORITHM, PROMPTS, TOKENIZER, expected, rollouts, settings, train, trainer_of

from cw_plugin.errors import HostError
from cw_plugin.hosts.skyrl import refused_settings
from cw_plugin.hosts.skyrl.hook import with_method
from cw_plugin.hosts.skyrl.trainer import CWGRPOTrainer
from cw_plugin.lab.reports.runs import read_run

RESPONSE = 6  # a token
HAS_ANCHOR = hasattr(ALGORITHM.cispo, "cispo_anchor")


@pytest.mark.parametrize(
    ("scope", "made", "changed"),
    [
        ("group", {}, {}),
        ("batch", {}, {}),
        ("group", {"turns": 3}, {"trainer.algorithm.advantage_estimator": "rloo"}),
        ("group", {"turns": 2}, {"trainer.algorithm.advantage_estimator": "maxrl"}),
        ("group", {}, {"trainer.algorithm.loss_reduction": "prompt_mean"}),
        ("group", {}, {"trainer.algorithm.use_kl_in_reward": "true", "trainer.algorithm.kl_loss_coef": "0.1"}),
        ("group", {"step_wise": True}, {"generator.step_wise_trajectories": "true"}),
    ],
)  # fmt: skip
def test_every_row_reaches_the_workers_with_the_weights_of_its_group(tmp_path, monkeypatch, scope, made, changed):
    monkeypatch.setenv("CW_GRPO_SCOPE", scope)
    output, uids = rollouts(**made)
    workers = 7 if "step_wise" in made else 2  # SkyRL fills up step-wise rows
    plain = train(trainer_of(RayPPOTrainer, settings(tmp_path, **changed), workers), output, uids)
    trainer = trainer_of(CWGRPOTrainer, settings(tmp_path, **changed), workers)
    _, staged = train(trainer, output, uids)
    wanted, mean_sigma = expected(plain, uids, scope)
    assert (len(staged["advantages"]) > len(uids)) == ("step_wise" in made)

    # SkyRL scales the advantages of a mini-batch by its tokens, or by each prompt's.
    mask = staged["loss_mask"].double()
    for first, last in staged.metadata["policy_mini_batch_boundaries"]:
        if "trainer.algorithm.loss_reduction" in changed:
            scale = torch.zeros(last - first, 1, dtype=torch.float64)
            for row in range(first, last):
                of_prompt = [other for other in range(first, last) if uids[other] == uids[row]]
                scale[row - first] = mask[of_prompt].sum() * (PROMPTS // 2)
        else:
            scale = mask[first:last].sum()
        got = (staged["advantages"][first:last] * mask[first:last]).double()
        torch.testing.assert_close(got, wanted[first:last] / scale, atol=1e-7, rtol=1e-5)
    moved = (wanted - plain[0].double() * mask).abs().max()
    assert moved > 0.1 and trainer.all_metrics["cw_grpo/sigma"] == pytest.approx(mean_sigma, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "chosen"), [("gaussian", ""), ("clip_cov", "share=0.02"), ("drop_top_cov", "share=0.02")]
)
def test_weights_do_not_depend_on_the_order_of_the_rows(tmp_path, monkeypatch, name, chosen):
    """Prompts in another order, and the responses of each; SkyRL asks that those of a prompt are consecutive."""
    monkeypatch.setenv("CW_GRPO_WEIGHTS", name)
    monkeypatch.setenv("CW_GRPO_SETTINGS", chosen)
    output, uids = rollouts()
    plain, _ = train(trainer_of(RayPPOTrainer, settings(tmp_path)), output, uids)
    found, _ = train(trainer_of(CWGRPOTrainer, settings(tmp_path)), output, uids)
    assert ((found - plain).abs().amax(1) > 0.1).sum() > 5
    chance = random.Random(1)
    prompts = chance.sample(sorted(set(uids)), PROMPTS)
    order = sorted(chance.sample(range(len(uids)), len(uids)), key=lambda row: prompts.index(uids[row]))
    permuted = {key: [rows[row] for row in order] if rows else rows for key, rows in output.items()}
    again, _ = train(trainer_of(CWGRPOTrainer, settings(tmp_path)), permuted, [uids[row] for row in order])
    torch.testing.assert_close(again, found[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", golden.WITHOUT_ENTROPIES)
def test_the_golden_vectors_reach_the_workers(tmp_path, monkeypatch, name):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", name)
    sizes = {"trainer.train_batch_size": 2, "trainer.policy_mini_batch_size": 2, "generator.n_samples_per_prompt": 4}
    trainer = trainer_of(CWGRPOTrainer, settings(tmp_path, **sizes))
    rows = golden.rows()

    def forward(model, data):
        responses = data["sequences"][:, -data.metadata["response_length"] :] == RESPONSE
        log_probs = torch.zeros(responses.shape)
        log_probs[responses] = torch.cat([of_row for _, of_row, _ in rows])
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": row.tolist()} for row in log_probs])

    trainer.dispatch.forward = forward
    output = {
        "prompt_token_ids": [[5]] * len(rows),
        "response_ids": [[RESPONSE] * len(log_probs) for _, log_probs, _ in rows],
        "rewards": [[0.0] * (len(log_probs) - 1) + [advantage] for _, log_probs, advantage in rows],
        "loss_masks": [[1] * len(log_probs) for _, log_probs, _ in rows],
        "trajectory_ids": [TrajectoryID(instance_id=uid, repetition_id=row) for row, (uid, *_) in enumerate(rows)],
        "stop_reasons": ["stop"] * len(rows),
        "rollout_logprobs": None,
    }
    found, batch = train(trainer, output, [uid for uid, *_ in rows])
    wanted = golden.weighted(name)[golden.of_tokens("response_mask").bool()]
    torch.testing.assert_close(found[batch["loss_mask"].bool()].double(), wanted, rtol=1e-4, atol=1e-5)


def test_the_log_says_which_advantages_a_run_trains_on(tmp_path, monkeypatch, capfd):
    """SkyRL writes what Python's loggers get to stderr, by loguru."""
    for weights, said in (("gaussian", "reweighted advantages"), ("none", "the host's own advantages")):
        monkeypatch.setenv("CW_GRPO_WEIGHTS", weights)
        for folder in (str(tmp_path), "s3://bucket/checkpoints"):
            trainer_of(CWGRPOTrainer, settings(tmp_path, **{"trainer.ckpt_path": folder}))
            loguru.logger.complete()  # it writes from a queue
            assert f"cw_grpo: this run trains on {said}" in capfd.readouterr().err


def test_the_weights_none_are_skyrl_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    batches, metrics = [], []
    for kind in (RayPPOTrainer, CWGRPOTrainer):
        trainer = trainer_of(kind, settings(tmp_path))
        batches.append(train(trainer, *rollouts(turns=2))[1])
        metrics.append(trainer.all_metrics)
    assert batches[0].keys() == batches[1].keys() and batches[0].metadata == batches[1].metadata
    for name, values in batches[0].items():
        assert (values is None and batches[1][name] is None) or torch.equal(values, batches[1][name])
    before, after = (metrics[1][f"cw_grpo/covariance_{when}"] for when in ("before", "after"))
    assert before == pytest.approx(after, rel=1e-5) and before != 0
    assert {name: value for name, value in metrics[1].items() if not name.startswith("cw_grpo/")} == metrics[0]


@pytest.mark.parametrize(("limit", "share"), [(2**18, 1), (400, 1 / 2)])  # of a large step, prompts are drawn
def test_a_step_is_recorded_and_the_settings_are_written(tmp_path, monkeypatch, limit, share):
    monkeypatch.setattr("cw_plugin.records.write.LIMIT", limit)
    monkeypatch.setenv("CW_GRPO_RECORD_EVERY", "4")
    changed = {"generator.step_wise_trajectories": "true", "trainer.ckpt_path": str(tmp_path / "checkpoints")}
    trainer = trainer_of(CWGRPOTrainer, settings(tmp_path, **changed), 7)
    output, uids = rollouts(turns=2, step_wise=True)
    file = tmp_path / "tokens" / "step_000004.parquet"
    for step in (3, 4):
        trainer.global_step = step
        train(trainer, output, uids)
        assert file.exists() == (step == 4)
    assert list(file.parent.iterdir()) == [file]
    table = parquet.read_table(file).to_pydict()
    recorded = set(table["row"])
    for row in recorded:
        ids, mask = output["response_ids"][row], output["loss_masks"][row]
        of_row = [place for place, number in enumerate(table["row"]) if number == row]
        assert [table["token_id"][place] for place in of_row] == [i for i, m in zip(ids, mask, strict=True) if m]
        last = row + output["is_last_step"][row:].index(True)
        assert {table["reward"][place] for place in of_row} == {sum(output["rewards"][last])}
    prompts = json.loads(parquet.read_metadata(file).metadata[b"prompts"])
    assert 0 < len(recorded) <= share * len(uids) and (share < 1 or len(recorded) == len(uids))
    first = {uids[row]: output["prompt_token_ids"][uids.index(uids[row])] for row in recorded}
    assert prompts == {uid: TOKENIZER.decode(ids, skip_special_tokens=True) for uid, ids in first.items()}
    run = read_run(tmp_path)
    assert (run.name, run.seed, run.config["cw_record_every"]) == ("CW-GRPO", 42, 4)


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_trainer_of_ones_own_is_served_in_either_order(tmp_path, order):
    kind = type("Mine", (CWGRPOTrainer, Halves) if order == "before" else (Halves, CWGRPOTrainer), {})
    changed = {"trainer.algorithm.grpo_norm_by_std": "false"}
    plain = train(trainer_of(RayPPOTrainer, settings(tmp_path, **changed)), *rollouts())
    advantages, _ = train(trainer_of(kind, settings(tmp_path, **changed)), *rollouts())
    torch.testing.assert_close(2 * advantages.double(), expected(plain, rollouts()[1])[0], atol=1e-6, rtol=1e-5)


def test_a_trainer_that_trains_on_other_advantages_is_refused(tmp_path):
    class Own(RayPPOTrainer):
        def compute_advantages_and_returns(self, data):
            data["advantages"] = data["returns"] = data["rewards"]
            return data

    kind = type("Mine", (Own, CWGRPOTrainer), {})
    with pytest.raises(HostError, match="Mine trains without compute_advantages_and_returns of CWGRPOTrainer"):
        train(trainer_of(kind, settings(tmp_path)), *rollouts())
    trainer = trainer_of(CWGRPOTrainer, settings(tmp_path))
    _, batch = train(trainer, *rollouts())
    with pytest.raises(HostError, match="trains without compute_advantages_and_returns"):  # in a later step
        trainer.train_critic_and_policy(None)
    batch["action_log_probs"] = None
    with pytest.raises(HostError, match="the batch has no action_log_probs"):
        trainer.compute_advantages_and_returns(batch)


def test_a_trainer_that_gets_the_method_leaves_it_what_it_needs():
    for name in ("fwd_logprobs_values_reward", "_skip_policy_forward", "train_critic_and_policy"):
        base = type("Base", (RayPPOTrainer,), {"compute_advantages_and_returns": None, name: None})
        with pytest.raises(HostError, match=f"Own has .*{name}.* of its own, .* leaves them to RayPPOTrainer"):
            with_method(type("Own", (base,), {}))
    derived = type("Derived", (CWGRPOTrainer,), {})
    assert with_method(derived) is derived


ANCHORED = {"trainer.algorithm.policy_loss_type": "cispo", "trainer.algorithm.cispo.cispo_anchor": "rollout"}


@pytest.mark.parametrize(
    "loss",
    [
        {"trainer.algorithm.policy_loss_type": "rollout_is"},
        pytest.param(ANCHORED, marks=pytest.mark.skipif(not HAS_ANCHOR, reason="not in SkyRL 0.3.0")),
    ],
)
def test_the_fully_asynchronous_trainer_is_served(tmp_path, loss):
    """Its losses take the rollout's log-probs, and SkyRL would skip the forward pass of the weights' log-probs."""
    changed = loss | {
        "trainer.fully_async.enabled": "true",
        "trainer.fully_async.num_parallel_generation_workers": PROMPTS,
        "trainer.policy_mini_batch_size": PROMPTS,
    }
    kind = type("Mine", (CWGRPOTrainer, FullyAsyncRayPPOTrainer), {})
    cfg = settings(tmp_path, **changed)
    with pytest.MonkeyPatch.context() as patch:  # it reads the data set's length
        patch.setattr(kind, "_build_train_dataloader_and_compute_training_steps", lambda self: None)
        patch.setattr("skyrl.train.fully_async_trainer._AsyncDataloader", Mock())
        trainer = trainer_of(kind, cfg)
    output, uids = rollouts()
    groups = []
    for number in range(PROMPTS):
        rows = [row for row, uid in enumerate(uids) if uid == str(number)]
        part = {name: values and [values[row] for row in rows] for name, values in output.items()}
        part |= {"rollout_logprobs": [[-1.0] * len(ids) for ids in part["response_ids"]], "rollout_metrics": None}
        groups.append(GeneratedOutputGroup(part, str(number), global_step_when_scheduled=1))
    batch = trainer.convert_generation_group_mini_batch_to_training_input(groups)
    assert RayPPOTrainer._skip_policy_forward(trainer, batch)
    asyncio.run(trainer._run_training(batch))
    (staged,) = trainer.dispatch.staged
    plain = train(trainer_of(RayPPOTrainer, settings(tmp_path)), output, uids)
    got = staged["advantages"].double() * staged["loss_mask"].sum()
    torch.testing.assert_close(got * staged["loss_mask"], expected(plain, uids)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("anchor", ["old", *(["rollout"] if HAS_ANCHOR else [])])
def test_losses_that_are_allowed_multiply_each_token_by_its_advantage(anchor):
    """By their gradients, where the policy is still the one that sampled: minus the advantage of the token."""
    chance = torch.Generator().manual_seed(0)
    advantages, mask = torch.randn(4, 9, generator=chance), (torch.rand(4, 9, generator=chance) > 0.2).float()
    old = -torch.rand(4, 9, generator=chance)
    kept = set()
    for loss in PolicyLossType:
        config = SkyRLTrainConfig().trainer.algorithm
        config.policy_loss_type, config.clip_cov.clip_cov_lb = str(loss), 100.0  # clip_cov drops no token then
        config.cispo.cispo_anchor = anchor
        log_probs = old.clone().requires_grad_()
        value, _ = PolicyLossRegistry.get(str(loss))(log_probs, old, advantages, config, mask, old)
        (gradient,) = torch.autograd.grad(value, log_probs)
        if torch.allclose(gradient, -advantages * mask, atol=1e-6):
            kept.add(str(loss))
    assert kept == set(refused_settings.PER_TOKEN) and len(set(PolicyLossType) - kept) == 1
    assert set(refused_settings.GROUPED) == set(AdvantageEstimator) - {"gae", "reinforce++"}


def test_an_estimator_of_ones_own_must_give_a_response_one_advantage(tmp_path, monkeypatch):
    def passes(token_level_rewards: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return token_level_rewards, token_level_rewards

    ppo_utils.AdvantageEstimatorRegistry.register("passes", passes)
    ppo_utils.PolicyLossRegistry.register("mine", lambda *_: None)
    changed = {"trainer.algorithm.advantage_estimator": "passes", "trainer.algorithm.policy_loss_type": "mine"}
    trainer = trainer_of(CWGRPOTrainer, settings(tmp_path, **changed))
    validate_cfg(trainer.cfg)
    with pytest.raises(HostError, match="differs within a response"):
        train(trainer, *rollouts())
