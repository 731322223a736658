"""What verl's own trainers and the registered estimator train on, log, record and refuse.

test_verl_releases.py runs this file on earlier releases, the nightly workflow on verl's main.
"""

import pytest

pytest.importorskip("verl")

import asyncio
import inspect

import golden
import numpy as np
import torch
from omegaconf import OmegaConf
from pretend_device import DEVICE, Pretend, back, on_device
from ray import cloudpickle
from reference import reference_advantages
from trainers import (
    CW_GRPO,
    NEEDS_SEPARATE,
    NEEDS_V1,
    OPTION,
    LegacyTrainer,
    advantages,
    composed,
    legacy_trainer,
    one_step_off_trainer,
    separate_trainer,
    trained_on,
    trainer_batch,
    v1_trainer,
    weighted,
)
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.lab.reports.read_records import read_tokens, tokens_of
from cw_plugin.statistics import CovarianceStatistics

UNRECORDED = OPTION + "record_every=0"


@pytest.fixture(
    params=[
        legacy_trainer,
        pytest.param(v1_trainer, marks=NEEDS_V1),
        pytest.param(separate_trainer, marks=NEEDS_SEPARATE),
        pytest.param(one_step_off_trainer, marks=NEEDS_SEPARATE),
    ]
)
def make(request, tmp_path):
    """Makes trainers of verl in this process, as in its task runner."""

    def maker(*overrides):
        return request.param(UNRECORDED, f"trainer.default_local_dir={tmp_path}", CW_GRPO, *overrides)

    maker.of_verl, maker.is_v1 = request.param, request.param is v1_trainer
    return maker


def batch(make, seed=0, outputs=1):
    """A step's batch, and its keys if the trainer is V1's."""
    data, keys = trainer_batch(seed, outputs=outputs)
    return data, keys if make.is_v1 else None


@pytest.mark.parametrize(
    ("norm", "outputs", "options"),
    [
        (True, 1, {}),
        (False, 3, {}),
        (True, 3, {"scope": "batch"}),
        (True, 1, {"weights": "ar", "settings": {"alpha": 0.9}}),
    ],
)
def test_a_trainer_trains_on_grpo_times_the_reference_weights(make, norm, outputs, options):
    """Two steps of one trainer; with weights=none, bit for bit on GRPO."""
    normalises = f"algorithm.norm_adv_by_std_in_grpo={norm}"
    trainer = make(normalises, *[f"{OPTION}{name}={value}" for name, value in options.items()])
    plain = make(normalises, OPTION + "weights=none")
    for seed in range(2):
        data, keys = batch(make, seed, outputs)
        grpo = advantages("grpo", data, keys, trainer.config.algorithm)
        ours, _ = trained_on(trainer, data, keys)
        torch.testing.assert_close(ours.double(), weighted(data, grpo, **options), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(ours, grpo, atol=1e-2)
        assert torch.equal(trained_on(plain, data, keys)[0], grpo)
        if not make.is_v1:
            data.batch["response_mask"] = data.batch["response_mask"].bfloat16()  # which may have any dtype
            assert torch.equal(trained_on(trainer, data, keys)[0], ours)


@pytest.mark.parametrize("name", golden.GOLDEN["weightings"])
def test_the_golden_vectors_reach_the_update(make, name):
    mask, rewards = golden.of_tokens("response_mask").long(), torch.zeros(len(golden.UIDS), golden.WIDTH)
    rewards[:, 0] = golden.ADVANTAGES
    tensors = {
        "prompts": torch.zeros(len(mask), 1, dtype=torch.long),
        "responses": torch.zeros_like(mask),
        "attention_mask": torch.cat([torch.ones(len(mask), 1, dtype=torch.long), mask], 1),
        "response_mask": mask,
        "token_level_rewards": rewards,
        "token_level_scores": rewards,
        "old_log_probs": golden.of_tokens("log_probs").float(),
        "entropy": golden.of_tokens("entropies").float(),
    }
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(golden.UIDS, dtype=object)})
    keys = [f"{uid}_{row}_0" for row, uid in enumerate(golden.UIDS)] if make.is_v1 else None
    ours, _ = trained_on(make(f"{OPTION}weights={name}"), data, keys)
    torch.testing.assert_close(ours.double(), golden.weighted(name), rtol=1e-4, atol=1e-5)


def reordered(data, keys, order):
    """As verl's _balance_batch leaves a batch, which orders rows before advantages, by the number of ranks."""
    return data.select_idxs(order.tolist()), keys and [keys[row] for row in order.tolist()]


@pytest.mark.parametrize("name", ["clip_cov", "drop_top_cov", "high_entropy", "stare_gated", "eda"])
def test_weights_do_not_depend_on_the_order_of_the_rows(make, name):
    """Neither drawn tokens do, nor those between which only the order decides. GRPO's advantages differ by rounding."""
    trainer = make(f"{OPTION}weights={name}")
    for seed in range(2):
        data, keys = batch(make, seed)
        data.batch["entropy"] = data.batch["entropy"].round(decimals=1)  # ties
        data.batch["old_log_probs"] *= 3  # among these, clip_cov finds tokens
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        ours, _ = trained_on(trainer, *reordered(data, keys, torch.arange(len(data))))
        again, _ = trained_on(trainer, *reordered(data, keys, order))
        torch.testing.assert_close(again, ours[order], rtol=1e-5, atol=1e-6)
        grpo = advantages("grpo", data, keys, trainer.config.algorithm)
        assert not torch.allclose(ours, grpo, atol=1e-2)


@pytest.mark.parametrize("estimator", ["grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "gpg"])
def test_the_advantages_of_other_estimators_are_weighted(make, estimator):
    if estimator not in core_algos.ADV_ESTIMATOR_REGISTRY:
        pytest.skip(f"this verl has no {estimator}")
    norm = f"algorithm.norm_adv_by_std_in_grpo={estimator != 'grpo_passk'}"  # which reads it in the configuration
    trainer, plain = (make(norm, f"{OPTION}estimator={estimator}", *more) for more in ((), (OPTION + "weights=none",)))
    data, keys = batch(make)
    uids = data.non_tensor_batch["uid"].tolist()
    in_groups = [row for row, uid in enumerate(uids) if uids.count(uid) > 1]  # grpo_passk takes no other
    data, keys = data.select_idxs(in_groups), keys and [keys[row] for row in in_groups]
    of_verl = advantages(estimator, data, keys, trainer.config.algorithm)
    ours, _ = trained_on(trainer, data, keys)
    torch.testing.assert_close(ours.double(), weighted(data, of_verl), rtol=1e-5, atol=1e-5)
    assert torch.equal(trained_on(plain, data, keys)[0], of_verl)
    registered = of_registry(data, trainer.config.algorithm, old_log_probs=data.batch["old_log_probs"])
    torch.testing.assert_close(registered, ours, rtol=1e-5, atol=1e-6)


def test_a_trainer_without_old_log_probs_of_its_own_is_refused_where_entropies_are_needed(tmp_path):
    """Of the two, only the legacy one has entropies from a method."""
    settings = CW_GRPO, UNRECORDED, OPTION + "weights=steer", f"trainer.default_local_dir={tmp_path}"
    trainer = legacy_trainer(*settings, trainer=AdvantagesAlone)
    trainer.batch, _ = trainer_batch()
    trainer._compute_old_log_prob(trainer.batch)
    trainer.fit()  # its entropies must not reach the next step
    with pytest.raises(HostError, match="without calling _compute_old_log_prob, so there are no entropies; choose"):
        trainer.fit()


@NEEDS_SEPARATE
@pytest.mark.parametrize("program", [separate_trainer, one_step_off_trainer])
def test_in_bypass_mode_the_weights_are_those_of_the_rollouts_log_probs(program, tmp_path):
    """It is the default of the asynchronous programs, whose policy has moved on since."""
    bypass, folder = "algorithm.rollout_correction.bypass_mode=True", f"trainer.default_local_dir={tmp_path}"
    trainer, (data, _) = program(UNRECORDED, folder, CW_GRPO, bypass), trainer_batch()
    grpo = advantages("grpo", data, None, trainer.config.algorithm)
    ours, metrics = trained_on(trainer, data, None)
    data.batch["old_log_probs"] *= 2
    torch.testing.assert_close(ours.double(), weighted(data, grpo), rtol=1e-5, atol=1e-5)
    assert metrics["cw_grpo/weight_mean"] != 1


@NEEDS_SEPARATE
def test_a_sample_of_the_queue_is_a_whole_prompt_group():
    """By verl's own functions: of every prompt come rollout.n rows, which get one uid, and are put as one sample."""
    from verl.experimental.fully_async_policy import detach_utils, fully_async_rollouter

    config = composed(program="fully_async_policy")
    prompt = {"input_ids": torch.ones(1, 3, dtype=torch.long), "raw_prompt": np.array(["?"], dtype=object)}
    sample = detach_utils.RolloutSample(detach_utils.prepare_single_generation_data(prompt, config), "7", 0, {})
    put = []

    class Rollouter(fully_async_rollouter.FullyAsyncRollouter.__ray_metadata__.modified_class):
        total_generated_samples = _step_generated_samples = processed_sample_count = 0

        def __init__(self):
            self.async_rollout_manager = self.message_queue_client = self

        async def generate_sequences_single(self, batch):
            return DataProto.from_dict(tensors=dict(batch.batch))  # verl's, too, returns no uids

        async def get_statistics(self):
            return {}

        async def put_sample(self, sample):
            put.append(cloudpickle.loads(sample))
            return True

    asyncio.run(Rollouter()._process_single_sample_streaming(sample))
    (of_queue,) = put
    assert len(of_queue.full_batch) == config.actor_rollout_ref.rollout.n == 4
    assert of_queue.full_batch.non_tensor_batch["uid"].tolist() == ["uid_7"] * 4


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_other_estimators_are_untouched(make, estimator):
    """And beside a run of cw_grpo in the same process."""
    data, keys = batch(make)
    other, ours = make.of_verl(f"algorithm.adv_estimator={estimator}"), make()
    trained_on(ours, data, keys)
    found, metrics = trained_on(other, data, keys)
    assert torch.equal(found, advantages(estimator, data, keys, other.config.algorithm))
    assert not [name for name in metrics if "cw_grpo" in name]


class OwnFit(LegacyTrainer):
    """As the trainers of recipes have it: a ``fit`` in a module that has imported verl's functions by their names."""

    def fit(self):
        algorithm = self.config.algorithm
        self.batch = compute_advantage(self.batch, adv_estimator=algorithm.adv_estimator, config=algorithm)
        self.metrics = compute_data_metrics(batch=self.batch, use_critic=False)


compute_advantage, compute_data_metrics = ray_trainer.compute_advantage, ray_trainer.compute_data_metrics


def test_a_trainer_that_derives_from_verls_is_served(tmp_path):
    data, _ = trainer_batch()
    settings = CW_GRPO, UNRECORDED, f"trainer.default_local_dir={tmp_path}"
    found, metrics = trained_on(legacy_trainer(*settings, trainer=OwnFit), data, None)
    expected, _ = trained_on(legacy_trainer(*settings), data, None)
    assert torch.equal(found, expected) and "cw_grpo/sigma" in metrics
    elsewhere = type("Elsewhere", (LegacyTrainer,), {"fit": lambda self: None})
    elsewhere.fit.__module__ = core_algos.__name__  # which has not imported them
    with pytest.raises(HostError, match="core_algos has no compute_advantage, so its trainer would not train on"):
        legacy_trainer(*settings, trainer=elsewhere).fit()


def of_registry(data, config=None, **given):
    """The registered estimator, called as verl calls one."""
    return core_algos.get_adv_estimator_fn("cw_grpo")(
        token_level_rewards=data.batch["token_level_rewards"],
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
        config=config,
        **given,
    )[0]


@pytest.mark.parametrize(
    ("norm", "config"),
    [
        (True, None),
        (True, {"norm_adv_by_std_in_grpo": True, "cw_grpo": None}),
        (False, {"norm_adv_by_std_in_grpo": False}),
        (True, {"norm_adv_by_std_in_grpo": True, "cw_grpo": {"weights": "none"}}),
        (True, {"norm_adv_by_std_in_grpo": True, "cw_grpo": {"weights": "ar", "settings": {"alpha": 0.9}}}),
        (True, {"norm_adv_by_std_in_grpo": True, "cw_grpo": {"scope": "batch"}}),
    ],
)
def test_the_registered_estimator_takes_log_probs_and_options(make, norm, config):
    data, _ = trainer_batch()
    grpo = advantages("grpo", data, None, make(f"algorithm.norm_adv_by_std_in_grpo={norm}").config.algorithm)
    ours = of_registry(data, config and OmegaConf.create(config), old_log_probs=data.batch["old_log_probs"])
    options = (config or {}).get("cw_grpo") or {}
    torch.testing.assert_close(ours.double(), weighted(data, grpo, **options), rtol=1e-5, atol=1e-5)


def test_a_trainer_that_no_program_has_checked_refuses_the_settings_itself(make):
    with pytest.raises(OptionsError, match="loss_mode=geo_mean averages"):
        make("actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean")


def test_the_registered_estimator_refuses_what_it_lacks(make):
    """A trainer that is not followed, such as fully_async_policy's, must not train plain GRPO."""
    data, _ = trainer_batch()
    with pytest.raises(OptionsError, match="weights='steer' needs the entropy of each position"):
        needs_entropies = OmegaConf.create({"cw_grpo": {"weights": "steer"}})
        of_registry(data, needs_entropies, old_log_probs=data.batch["old_log_probs"])
    with pytest.raises(HostError, match=r"start verl\.trainer\.main_ppo"):
        of_registry(data)
    with pytest.raises(HostError, match=r"start verl\.trainer\.main_ppo"):
        advantages("cw_grpo", *batch(make), make().config.algorithm)


def test_checkpoints_keep_their_method(make, tmp_path, caplog):
    """tests/test_run.py tests the rule; here, that verl's checkpoints are found and the method is written down."""
    with caplog.at_level("INFO"):
        trained_on(make(), *batch(make))
    # In verl's processes, the root logger shows only errors.
    assert {log.name for log in caplog.records if "cw_grpo: " in log.message} == {"verl.cw_plugin"}
    make(OPTION + "weights=none")  # there is no checkpoint yet
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    make()
    refusal = f"{tmp_path} has checkpoints .* weights='gaussian', and this run has weights='none'"
    for resumes in ("auto", "disable"):
        with pytest.raises(OptionsError, match=refusal):
            make(OPTION + "weights=none", f"trainer.resume_mode={resumes}")
    link = tmp_path / "elsewhere" / "global_step_1"  # to a checkpoint of this folder
    link.parent.mkdir()
    link.symlink_to(tmp_path / link.name)
    elsewhere = [f"trainer.default_local_dir={link.parent}", f"trainer.resume_from_path={link}"]
    with pytest.raises(OptionsError, match=refusal):
        make(OPTION + "weights=none", *elsewhere, "trainer.resume_mode=resume_path")
    make(OPTION + "weights=none", *elsewhere)  # in which verl does not read the path


def test_a_nan_is_reported_with_its_origin_and_the_uid_of_its_prompt(make):
    for where, message in (
        ("old_log_probs", "log_probs.*7\\. It comes from the model's .* Their uids: {}"),
        ("token_level_rewards", r"advantages.* check the reward function\. Their uids: .*{}"),
    ):
        data, keys = batch(make)
        data.batch[where][7, 0] = float("nan")
        with pytest.raises(NonFiniteError, match=message.format(data.non_tensor_batch["uid"][7])):
            trained_on(make(), data, keys)


def test_metrics_are_logged_with_verls_own(make):
    trainer, (data, keys) = make(), batch(make)
    _, metrics = trained_on(trainer, data, keys)
    names = {f"cw_grpo/{name}" for name in (*CovarianceStatistics.__dataclass_fields__, "seconds")}
    assert {name for name in metrics if name.startswith("cw_grpo/")} == names
    for name, method in vars(trainer).items():
        if inspect.isfunction(method):  # one that stands before verl's, and is called the same in a traceback
            assert method.__qualname__ == getattr(type(trainer), name).__qualname__
    of_verl = "critic/score/mean" if make.of_verl is legacy_trainer else "actor/entropy"
    assert make.is_v1 or of_verl in metrics
    grpo = advantages("grpo", data, keys, trainer.config.algorithm)
    given = data.batch["old_log_probs"], grpo, data.batch["response_mask"], data.non_tensor_batch["uid"]
    c = np.concatenate([group["c"] for group in reference_advantages(*given)[1].values()])
    assert metrics["cw_grpo/covariance_before"] == pytest.approx(c.mean(), rel=1e-4, abs=1e-6)
    assert metrics["cw_grpo/covariance_max"] == pytest.approx(c.max(), rel=1e-4)


@pytest.mark.parametrize("scope", ["group", "batch"])
def test_on_a_device_advantages_are_those_of_the_cpu(tmp_path, scope):
    """The legacy trainer's batch may be on a device."""
    settings = CW_GRPO, UNRECORDED, f"{OPTION}scope={scope}", f"trainer.default_local_dir={tmp_path}"
    trainer, (data, _) = legacy_trainer(*settings, trainer=AdvantagesAlone), trainer_batch()
    trainer.batch = data
    trainer.fit()
    expected = trainer.batch.batch["advantages"]
    trainer.batch = DataProto.from_dict(tensors=on_device(dict(data.batch)), non_tensors=data.non_tensor_batch)
    with Pretend():
        trainer.fit()
        found = trainer.batch.batch["advantages"]
        assert found.device == DEVICE and torch.equal(back(found), expected)


class AdvantagesAlone(LegacyTrainer):
    def fit(self):
        algorithm = self.config.algorithm
        self.batch = ray_trainer.compute_advantage(self.batch, algorithm.adv_estimator, config=algorithm)

    fit.__module__ = ray_trainer.__name__


def test_every_batch_of_a_step_that_is_due_is_recorded_with_its_texts(tmp_path, make):
    """V1's separate_async computes advantages parameter_sync_step times within one global step. The rows of a prompt
    are scattered."""
    trainer = make.of_verl(CW_GRPO, f"trainer.default_local_dir={tmp_path}")
    of_steps = [trainer_batch(seed) for seed in range(13)]
    for trainer.global_steps, (data, keys) in zip((*[1] * 11, 49, 50), of_steps, strict=True):
        trained_on(trainer, data, keys if make.is_v1 else None)
    batches = [data for data, _ in of_steps]
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
