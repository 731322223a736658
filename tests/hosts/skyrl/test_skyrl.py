"""CW-GRPO in SkyRL's own trainers, batch, advantage and loss functions, on CPU tensors.

test_skyrl_releases.py runs this file. In the place of SkyRL's workers, which need Ray, stands :class:`Workers`.
"""

import asyncio
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import loguru
import pytest
import skyrl_gym
import torch
from interpreter import ROOT, bash
from pyarrow import parquet
from reference import reference_advantages
from reference_weightings import reference_weighted
from skyrl.backends.skyrl_train.utils import ppo_utils
from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimator, PolicyLossRegistry, PolicyLossType
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints import main_base
from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer, GeneratedOutputGroup
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from transformers import AutoTokenizer

from cw_plugin.errors import HostError, NonFiniteError, OptionsError
from cw_plugin.hosts import skyrl
from cw_plugin.hosts.skyrl import CWGRPOTrainer, entrypoint, refused_settings
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.reports.runs import read_run
from cw_plugin.lab.rewards import skyrl as rewards

PROMPTS, SAMPLES = 8, 6
ALGORITHM = SkyRLTrainConfig().trainer.algorithm
HAS_ANCHOR = hasattr(ALGORITHM.cispo, "cispo_anchor")
MODEL = ROOT / "examples" / "cpu" / "model"
TOKENIZER = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
SETTINGS = {
    "trainer.policy.model.path": MODEL,
    "trainer.placement.colocate_all": "false",
    "trainer.placement.policy_num_gpus_per_node": 2,
    "trainer.algorithm.use_kl_loss": "false",
    "trainer.enable_ray_gpu_monitor": "false",
    "trainer.logger": "console",
    "trainer.train_batch_size": PROMPTS,
    "trainer.policy_mini_batch_size": PROMPTS // 2,
    "generator.n_samples_per_prompt": SAMPLES,
    "generator.inference_engine.enable_ray_prometheus_stats": "false",
}


def settings(folder: Path, **changed: Any) -> SkyRLTrainConfig:
    values = SETTINGS | {"trainer.export_path": folder, "trainer.ckpt_path": folder} | changed
    return SkyRLTrainConfig.from_cli_overrides([f"{key}={value}" for key, value in values.items()])


class Workers:
    """SkyRL's WorkerDispatch without workers. Log-probs are random; what would be trained on is kept in ``staged``."""

    def __init__(self, size: int = 2) -> None:
        self.size, self.staged = size, []

    def get_lcm_dp_size(self) -> int:
        return self.size

    def forward(self, model: str, data: Any) -> SimpleNamespace:
        chance = torch.Generator().manual_seed({"policy": 0, "ref": 1}[model])
        log_probs = -5 * torch.rand(len(data["sequences"]), data.metadata["response_length"], generator=chance) ** 3
        return SimpleNamespace(loss_fn_outputs=[{"logprobs": row.tolist()} for row in log_probs])

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        assert model == "policy"
        self.staged.append(data)
        return []

    def empty_cache(self, model: str | None = None) -> None:
        pass


def trainer_of(kind: type, cfg: SkyRLTrainConfig, workers: int = 2, **given: Any) -> Any:
    cfg.trainer.recompute_old_logprobs_per_minibatch = False  # one forward pass, which Workers has
    trainer = kind(cfg=cfg, tracker=Mock(), tokenizer=TOKENIZER, train_dataset=None, inference_engine_client=None,
                   generator=None, **given)  # fmt: skip
    trainer.dispatch, trainer.global_step = Workers(workers), 1
    if cfg.trainer.algorithm.use_kl_in_reward:
        trainer.ref_model = "ref"
    return trainer


def rollouts(turns: int = 1, step_wise: bool = False, seed: int = 0) -> tuple[dict[str, Any], list[str]]:
    """What SkyRL's generator returns, and the uids. Between several turns stand tokens of the environment. Step-wise,
    each of the turns, one to three, is a row of its own. The first prompt has no signal."""
    chance, rows, uids = random.Random(seed), [], []

    def tokens(low: int, high: int) -> list[int]:
        return [chance.randrange(5, TOKENIZER.vocab_size) for _ in range(chance.randint(low, high))]

    for number in range(PROMPTS):
        prompt = tokens(3, 12)
        for sample in range(SAMPLES):
            reward = float(chance.random() < 0.5) if number else 1.0
            trajectory = TrajectoryID(instance_id=str(number), repetition_id=sample)
            steps = chance.randint(1, 3) if step_wise else 1
            for step in range(steps):
                response = tokens(2 * turns, 30)
                mask = [1] * len(response)
                for hole in chance.sample(range(1, len(response) - 1), 2 * (turns - 1)):
                    mask[hole] = 0
                of_token = [0.0] * (len(response) - 1) + [reward if step == steps - 1 else 0.0]
                rows.append((prompt, response, of_token, mask, trajectory, step == steps - 1))
                uids.append(str(number))
    names = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "trajectory_ids", "is_last_step")
    made = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    if not step_wise:
        del made["is_last_step"]
    return made | {"stop_reasons": ["stop"] * len(rows), "rollout_logprobs": None}, uids


def train(trainer: Any, made: dict[str, Any], uids: list[str]) -> tuple[Any, Any]:
    """One step, as RayPPOTrainer.train makes it. Returns the batch with advantages, before SkyRL scales them, and the
    batch that its workers would get."""
    made, uids = trainer.postprocess_generator_output(dict(made), uids)
    batch = trainer.fwd_logprobs_values_reward(trainer.convert_to_training_input(made, uids))
    if trainer.cfg.trainer.algorithm.use_kl_in_reward:
        batch = trainer.apply_reward_kl_penalty(batch)
    batch = trainer.compute_advantages_and_returns(batch)
    advantages = batch["advantages"].clone()
    trainer.train_critic_and_policy(batch)
    return advantages, trainer.dispatch.staged[-1]


def expected(plain: Any, uids: list[str], scope: str = "group") -> tuple[torch.Tensor, float]:
    """w~ A of every row, in float64, from SkyRL's own advantages; and the mean sigma of the groups."""
    advantages, batch = plain
    rows = len(advantages)
    uids = uids + [f"padding {row}" for row in range(rows - len(uids))]
    weighted, groups = reference_advantages(
        batch["action_log_probs"], advantages, batch["loss_mask"], uids if scope == "group" else [0] * rows
    )
    sigmas = [group["sigma"] for group in groups.values() if group["sigma"] > 0]
    return torch.tensor(weighted, dtype=torch.float64), sum(sigmas) / len(sigmas)


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


@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("name", ["ar", "stare", "drop_top_cov", "w_reinforce"])
def test_every_weighting_weighs_whole_groups(tmp_path, monkeypatch, name, scope):
    monkeypatch.setenv("CW_GRPO_SCOPE", scope)
    monkeypatch.setenv("CW_GRPO_WEIGHTS", name)
    output, uids = rollouts(turns=2)
    plain, batch = train(trainer_of(RayPPOTrainer, settings(tmp_path)), output, uids)
    found, _ = train(trainer_of(CWGRPOTrainer, settings(tmp_path)), output, uids)
    log_probs, mask = batch["action_log_probs"], batch["loss_mask"]
    together = uids if scope == "group" else [0] * len(uids)
    wanted = reference_weighted(name, log_probs, plain * mask, mask, together, torch.zeros_like(log_probs))
    torch.testing.assert_close((found * mask).double(), wanted, atol=1e-6, rtol=1e-5)


def test_a_weighting_that_needs_entropies_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "steer")
    with pytest.raises(OptionsError, match=r"'steer' needs the entropy .* SkyRL does not .*; train with verl"):
        refused_settings.check(settings(tmp_path))


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


def test_a_step_is_recorded_and_the_settings_are_written(tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_RECORD_EVERY", "4")
    trainer = trainer_of(CWGRPOTrainer, settings(tmp_path, **{"generator.step_wise_trajectories": "true"}), 7)
    output, uids = rollouts(turns=2, step_wise=True)
    for step in (3, 4):
        trainer.global_step = step
        train(trainer, output, uids)
    file = tmp_path / "tokens" / "step_000004.parquet"
    assert list(file.parent.iterdir()) == [file]
    table = parquet.read_table(file).to_pydict()
    for row, (ids, mask) in enumerate(zip(output["response_ids"], output["loss_masks"], strict=True)):
        of_row = [place for place, number in enumerate(table["row"]) if number == row]
        assert [table["token_id"][place] for place in of_row] == [i for i, m in zip(ids, mask, strict=True) if m]
        last = row + output["is_last_step"][row:].index(True)
        assert {table["reward"][place] for place in of_row} == {sum(output["rewards"][last])}
    prompts = json.loads(parquet.read_metadata(file).metadata[b"prompts"])
    first = {uid: output["prompt_token_ids"][uids.index(uid)] for uid in uids}
    assert prompts == {uid: TOKENIZER.decode(ids, skip_special_tokens=True) for uid, ids in first.items()}
    run = read_run(tmp_path)
    assert (run.name, run.seed, run.config["cw_record_every"]) == ("CW-GRPO", 42, 4)


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_trainer_of_ones_own_is_served_in_either_order(tmp_path, order):
    class Halves(RayPPOTrainer):
        """As DAPO's trainer in SkyRL's examples, it changes rewards."""

        def postprocess_generator_output(self, generator_output, uids):
            generator_output["rewards"] = [[value / 2 for value in row] for row in generator_output["rewards"]]
            return super().postprocess_generator_output(generator_output, uids)

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
    train(trainer, *rollouts())
    with pytest.raises(HostError, match="trains without compute_advantages_and_returns"):  # in a later step
        trainer.train_critic_and_policy(None)


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


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("trainer.algorithm.advantage_estimator=gae", "no prompt groups"),
        ("trainer.algorithm.advantage_estimator=reinforce++", "no prompt groups"),
        ("trainer.algorithm.policy_loss_type=cross_entropy", "does not multiply a token by its advantage"),
        ("trainer.algorithm.advantage_batch_normalize=true", "subtracts the mean"),
        ("generator.n_samples_per_prompt=1", "one response in a prompt group"),
        ("trainer.export_path=s3://bucket/run", "is not a folder"),
    ],
)
def test_what_would_not_be_the_method_is_refused_before_ray_starts(tmp_path, monkeypatch, setting, said):
    key, value = setting.split("=")
    arguments = {f"{name}={given}" for name, given in (SETTINGS | {"trainer.ckpt_path": tmp_path, key: value}).items()}
    monkeypatch.setattr(sys, "argv", ["main_base", "trainer.override_entrypoint=cw_plugin.hosts.skyrl", *arguments])
    monkeypatch.setattr(entrypoint, "initialize_ray", Mock(side_effect=AssertionError))
    with pytest.raises(SystemExit, match=said) as caught:
        main_base.main()
    assert str(caught.value).startswith("cw_grpo: ") and "\n" not in str(caught.value) and setting in str(caught.value)


def test_a_run_is_not_resumed_under_another_method(tmp_path, monkeypatch):
    train(trainer_of(CWGRPOTrainer, settings(tmp_path)), *rollouts())
    monkeypatch.setenv("CW_GRPO_SCOPE", "batch")
    skyrl.check(settings(tmp_path))  # there is no checkpoint yet
    (tmp_path / "latest_ckpt_global_step.txt").write_text("4")
    for changed in ({}, {"trainer.resume_mode": "none"}):
        with pytest.raises(OptionsError, match=f"{tmp_path} has checkpoints .* scope='group', and this run"):
            skyrl.check(settings(tmp_path, **changed))
    skyrl.check(settings(tmp_path, **{"trainer.ckpt_path": "s3://bucket/run"}))
    elsewhere = {"trainer.resume_mode": "from_path", "trainer.resume_path": str(tmp_path / "global_step_4")}
    with pytest.raises(OptionsError, match=f"{tmp_path} has checkpoints .* scope='group', and this run"):
        trainer_of(CWGRPOTrainer, settings(tmp_path / "elsewhere", **elsewhere))


@pytest.mark.skipif(not hasattr(ALGORITHM, "enable_sample_support_replay"), reason="not in SkyRL 0.3.0")
def test_log_probs_over_a_part_of_the_vocabulary_are_refused(tmp_path, monkeypatch):
    cfg = settings(tmp_path)
    cfg.trainer.algorithm.enable_sample_support_replay = True
    with pytest.raises(OptionsError, match="enable_sample_support_replay=true takes log-probs over the tokens that"):
        skyrl.check(cfg)
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    skyrl.check(cfg)


def test_what_loses_no_weights_is_allowed(tmp_path, monkeypatch):
    skyrl.check(settings(tmp_path, **{"generator.n_samples_per_prompt": 2}))
    lost = {"trainer.algorithm.policy_loss_type": "cross_entropy", "trainer.algorithm.advantage_batch_normalize": True}
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    skyrl.check(settings(tmp_path, **lost))


def test_options_reach_the_trainers_process_and_an_unknown_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["", *(f"{name}={value}" for name, value in SETTINGS.items()),
                                      f"trainer.export_path={tmp_path}"])  # fmt: skip
    for name in ("initialize_ray", "ray"):
        monkeypatch.setattr(entrypoint, name, Mock())
    monkeypatch.setattr(entrypoint, "train", remote := Mock())
    monkeypatch.setenv("CW_GRPO_SCOPE", "batch")
    entrypoint.main()
    assert remote.options.call_args.kwargs == {"runtime_env": {"env_vars": {"CW_GRPO_SCOPE": "batch"}}}
    assert remote.options().remote.call_args.args[1].generator.n_samples_per_prompt == SAMPLES
    monkeypatch.setenv("CW_GRPO_WEIGHT", "none")
    with pytest.raises(SystemExit, match="cw_grpo: CW_GRPO_WEIGHT is not an option"):
        entrypoint.main()


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


def test_a_value_that_is_not_a_number_stops_the_run(tmp_path):
    output, uids = rollouts()
    output["rewards"][8][-1] = float("nan")  # one response to the second prompt
    with pytest.raises(NonFiniteError, match=r"advantages: NaN or infinite .* check") as caught:
        train(trainer_of(CWGRPOTrainer, settings(tmp_path)), output, uids)
    assert caught.value.rows == [6, 7, 8, 9, 10, 11]


def test_a_skyrl_of_another_shape_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(RayPPOTrainer, "train_critic_and_policy")
    with pytest.raises(HostError, match=r"there is no .*RayPPOTrainer\.train_critic_and_policy; install skyrl 0"):
        skyrl.check(settings(tmp_path))


def test_the_reward_is_an_environment_of_skyrl_gym():
    rewards.register(model_path=str(MODEL))
    row = {"data_source": "mine", "reward_model": {"style": "rule", "ground_truth": "3"}, "max_turns": 1}
    environment = skyrl_gym.make("cw_grpo", env_config={}, extras=row)
    said = environment.step("<think>\n1 + 2\n</think>\n\\boxed{3}")
    assert (said["reward"], said["done"], environment.get_metrics()) == (2.0, True, {"acc": 1.0, "format": 1.0})
    assert skyrl_gym.make("cw_grpo", env_config={}, extras=row).step("\\boxed{4}")["reward"] == 0.0
    with pytest.raises(DataError, match="no reward_model"):
        skyrl_gym.make("cw_grpo", env_config={}, extras={"answer": "3"})


def test_skyrl_accepts_the_settings_of_the_recipe():
    cfg = SkyRLTrainConfig.from_cli_overrides(bash("skyrl/paper.sh", DRY_RUN="1").stdout.splitlines()[1:])
    validate_cfg(cfg)
    skyrl.check(cfg)
    assert cfg.generator.n_samples_per_prompt == 12
