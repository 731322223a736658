"""The advantages in OpenRLHF's own sample, experience and loss classes, on CPU tensors.

test_openrlhf_releases.py runs this file under the oldest and the newest release that fit.
"""

import pytest

pytest.importorskip("openrlhf")

import copy
import json
import random

import golden
import torch
from openrlhf.models import PolicyLoss
from openrlhf.trainer import ppo_trainer_async
from openrlhf.trainer.ppo_utils.experience import balance_experiences
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer
from openrlhf_experiences import (
    PROMPTS,
    SAMPLES,
    both,
    each,
    expected,
    experiences,
    maker_of,
    sample,
    samples,
    settings,
)
from pretend_device import DEVICE, Pretend, back, on_device
from pyarrow import parquet
from ray import cloudpickle

from cw_plugin.errors import HostError, NonFiniteError

pytestmark = pytest.mark.usefixtures("plain")
# The trainer's class as a driver without the hook sends it to a worker.
SENT = cloudpickle.dumps(ppo_trainer_async.TrainingActor.__ray_metadata__.modified_class)


@pytest.mark.parametrize(
    ("estimator", "turns", "dynamic", "scope"),
    [*((name, 1, False, "group") for name in ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")),
     ("group_norm", 3, True, "group"), ("group_norm", 1, False, "batch")],
)  # fmt: skip
def test_every_row_reaches_the_loss_with_the_weights_of_its_group(
    plain, actor, tmp_path, monkeypatch, estimator, dynamic, turns, scope
):
    monkeypatch.setenv("CW_GRPO_SCOPE", scope)
    args = settings(tmp_path, **{"algo.advantage.estimator": estimator, "train.dynamic_batch_enable": dynamic})
    before, after = both(plain, maker_of(args), actor, turns)
    wanted, mean_sigma = expected(before, scope)
    for (experience, i), row in zip(each(after), wanted, strict=True):
        assert experience.advantages[i].tolist() == pytest.approx(row, abs=1e-6)
    assert any(len(set(w)) > 3 for w in wanted)
    for experience in after:  # which Ray sends without the rest of the batch
        assert experience.advantages.untyped_storage().nbytes() == 4 * experience.advantages.numel()
    sigma = {float(value) for experience in after for value in experience.info["cw_grpo/sigma"]}
    assert len(sigma) == 1 and sigma.pop() == pytest.approx(mean_sigma, rel=1e-4)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    if dynamic:
        after = balance_experiences(after, args)
    loss, total, of_prompt = PolicyLoss(), 0.0, {}
    tokens = float(sum(int(e.action_mask[i].sum()) for e, i in each(before)))
    share = (len(after) + 1) // 2
    for number in range(2):  # as RayActorGroup spreads them
        buffer = NaiveReplayBuffer(4)
        for experience in after[number * share : (number + 1) * share]:
            buffer.append(experience)
        for item in buffer.items:
            of_prompt.setdefault(item.prompts[0], set()).add(number)
        random.Random(1).shuffle(buffer.items)
        for first in range(0, len(buffer.items), 4):
            batch = buffer.collate_fn(buffer.items[first : first + 4])
            with torch.no_grad():
                log_probs = actor(batch.sequences, batch.action_mask, batch.attention_mask)
            value = loss(log_probs, batch.action_log_probs, batch.advantages, batch.action_mask)[0]
            total += value.item() * float(batch.action_mask.sum())
    assert any(len(actors) > 1 for actors in of_prompt.values()) or not dynamic
    assert total / tokens == pytest.approx(-sum(map(sum, wanted)) / tokens, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "chosen"), [("gaussian", ""), ("clip_cov", "lower=0.05"), ("drop_top_cov", "share=0.02")]
)
def test_weights_do_not_depend_on_the_order_of_the_rows(plain, actor, tmp_path, monkeypatch, name, chosen):
    """Prompts in another order, and the responses of each; OpenRLHF takes those of a prompt as consecutive."""
    monkeypatch.setenv("CW_GRPO_WEIGHTS", name)
    monkeypatch.setenv("CW_GRPO_SETTINGS", chosen)
    maker, chance = maker_of(settings(tmp_path)), random.Random(1)
    rows = samples(turns=1)
    groups = [rows[first : first + SAMPLES] for first in range(0, len(rows), SAMPLES)]
    shuffled = [row for group in chance.sample(groups, len(groups)) for row in chance.sample(group, SAMPLES)]
    assert [row.prompts for row in shuffled] != [row.prompts for row in rows]

    def trained_on(order):
        made = maker.compute_advantages_and_returns(experiences(maker, actor, turns=1, rows=order))
        of_rows = {}
        for e, i in each(made):
            sequence = e.sequences[i][e.attention_mask[i].bool()]
            of_rows[tuple(sequence.tolist())] = e.advantages[i][e.action_mask[i].bool()]
        return of_rows

    found, again = trained_on(rows), trained_on(shuffled)
    assert found.keys() == again.keys() and len(found) == len(rows)
    assert sum(len(set(advantages.tolist())) > 1 for advantages in found.values()) > 5
    for sequence, advantages in found.items():
        torch.testing.assert_close(again[sequence], advantages, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", golden.WITHOUT_ENTROPIES)
def test_the_golden_vectors_reach_the_loss(tmp_path, monkeypatch, name):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", name)
    maker = maker_of(settings(tmp_path, **{"rollout.n_samples_per_prompt": 4}))
    made = maker.split_rollout_samples(
        [sample(uid, [0], [1] * len(log_probs), advantage) for uid, log_probs, advantage in golden.rows()]
    )
    for experience in made:
        experience.action_log_probs = torch.zeros_like(experience.action_mask, dtype=torch.float32)
        experience.kl = torch.zeros_like(experience.action_log_probs)
    for (experience, i), (_, log_probs, _) in zip(each(made), golden.rows(), strict=True):
        experience.action_log_probs[i, experience.action_mask[i].bool()] = log_probs
    found = maker.compute_advantages_and_returns(made)
    for (experience, i), wanted in zip(each(found), golden.weighted(name), strict=True):
        advantages = experience.advantages[i][experience.action_mask[i].bool()]
        torch.testing.assert_close(advantages.double(), wanted[: len(advantages)], rtol=1e-4, atol=1e-5)


def test_the_weights_none_are_openrlhf_bit_for_bit(plain, actor, tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    maker = maker_of(settings(tmp_path, **{"train.dynamic_batch_enable": True}))
    before, after = both(plain, maker, actor)
    for ours, theirs in zip(after, before, strict=True):
        assert torch.equal(ours.advantages, theirs.advantages) and torch.equal(ours.returns, theirs.returns)
        assert {name for name in ours.info if not name.startswith("cw_grpo/")} == set(theirs.info) != set()
        covariance = [float(ours.info[f"cw_grpo/covariance_{when}"][0]) for when in ("before", "after")]
        assert covariance[0] == pytest.approx(covariance[1], rel=1e-5) and covariance[0] != 0


@pytest.mark.parametrize(("limit", "share"), [(2**18, 1), (300, 1 / 2)])
def test_a_step_is_recorded_with_its_prompts_and_tokens(plain, actor, tmp_path, monkeypatch, limit, share):
    """The step is the one that OpenRLHF logs it under. Of a large one, prompts are drawn."""
    monkeypatch.setattr("cw_plugin.records.write.LIMIT", limit)
    monkeypatch.setenv("CW_GRPO_RECORD_EVERY", "4")
    maker = maker_of(settings(tmp_path))
    made = experiences(maker, actor, turns=3)

    class Enough(Exception):
        pass

    def make_experience_batch(_):
        maker.compute_advantages_and_returns(copy.deepcopy(made))
        raise Enough

    monkeypatch.setattr(maker, "make_experience_batch", make_experience_batch)
    trainer_class = cloudpickle.loads(cloudpickle.dumps(cloudpickle.loads(SENT)))  # an actor starts the trainer's actor
    trainer = trainer_class.__new__(trainer_class)
    trainer.experience_maker = maker
    maker.compute_advantages_and_returns(copy.deepcopy(made))  # before a trainer has told it the step
    assert not (tmp_path / "tokens").exists()
    for global_step in (2, 3):
        with pytest.raises(Enough):
            trainer.train_step([], global_step)
    file = tmp_path / "tokens" / "step_000004.parquet"
    assert list(file.parent.iterdir()) == [file]
    table, rows = parquet.read_table(file).to_pydict(), samples(turns=3)
    rewards, wanted = dict(zip(table["row"], table["reward"], strict=True)), {}
    assert rewards == {number: float(rows[number].rewards) for number in rewards}
    for number in rewards:
        ids, row = [i for i, of in zip(table["token_id"], table["row"], strict=True) if of == number], rows[number]
        assert ids == row.sequences[0, 1:][row.action_mask[0].bool()].tolist()
        prompt = row.sequences[0, : int(row.action_mask[0].argmax()) + 1].tolist()
        wanted[str(number // SAMPLES)] = maker.tokenizer.decode(prompt, skip_special_tokens=True)
    assert json.loads(parquet.read_metadata(file).metadata[b"prompts"]) == wanted
    assert 0 < len(rewards) <= share * len(rows) and (share < 1 or len(wanted) == PROMPTS)


@pytest.mark.parametrize(("what", "rows"), [("log_probs", [6]), ("advantages", [6, 7, 8, 9, 10, 11])])
def test_a_value_that_is_not_a_number_stops_the_run(actor, tmp_path, what, rows):
    maker = maker_of(settings(tmp_path))
    made = experiences(maker, actor, turns=1)
    if what == "log_probs":
        made[1].action_log_probs[2, int(made[1].action_mask[2].argmax())] = float("nan")
    else:  # by the reward of one response to the second prompt
        made[1].rewards[2] = float("nan")
    with pytest.raises(NonFiniteError, match=f"{what}: NaN or infinite .* check") as caught:
        maker.compute_advantages_and_returns(made)
    assert caught.value.rows == rows


@pytest.mark.parametrize("scope", ["group", "batch"])
def test_on_a_device_experiences_are_reweighted_as_on_the_cpu(plain, actor, tmp_path, monkeypatch, scope):
    monkeypatch.setenv("CW_GRPO_SCOPE", scope)
    maker = maker_of(settings(tmp_path))
    maker.cw_grpo.step = 1  # which is recorded
    made = plain(maker, experiences(maker, actor, turns=3))
    there = copy.deepcopy(made)
    for experience in there:
        for name in ("sequences", "action_log_probs", "advantages", "action_mask", "rewards"):
            setattr(experience, name, on_device(getattr(experience, name)))
    maker.cw_grpo.reweight(made)
    with Pretend():
        maker.cw_grpo.reweight(there)
    for experience, wanted in zip(there, made, strict=True):
        assert experience.advantages.device == DEVICE
        assert torch.equal(back(experience.advantages), wanted.advantages)
        assert torch.equal(experience.info["cw_grpo/sigma"], wanted.info["cw_grpo/sigma"])
    on_cpu, on_it = (parquet.read_table(tmp_path / "tokens" / f"step_000001{part}.parquet") for part in ("", "-2"))
    assert on_cpu == on_it


def test_advantages_that_differ_within_a_response_are_refused(actor, tmp_path):
    """A penalty that this release does not have, but the next may."""
    maker = maker_of(settings(tmp_path))
    made = experiences(maker, actor, turns=1)
    maker.kl_ctl.value = 0.1
    for experience in made:
        experience.kl = torch.rand_like(experience.action_log_probs)
    with pytest.raises(HostError, match="differs within a response"):
        maker.compute_advantages_and_returns(copy.deepcopy(made))
