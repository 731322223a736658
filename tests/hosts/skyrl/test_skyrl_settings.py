"""Which settings of SkyRL are refused and allowed, and its reward.

test_skyrl_releases.py runs this file.
"""

import pytest

pytest.importorskip("skyrl")

from types import SimpleNamespace
from unittest.mock import Mock

import skyrl_gym
from interpreter import bash
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl_trainers import ALGORITHM, MODEL, rollouts, settings, train, trainer_of

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.hosts import skyrl
from cw_plugin.hosts.skyrl import refused_settings
from cw_plugin.hosts.skyrl.trainer import CWGRPOTrainer
from cw_plugin.lab.errors import DataError
from cw_plugin.lab.rewards import skyrl as rewards


def test_a_weighting_that_needs_entropies_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "steer")
    with pytest.raises(OptionsError, match=r"'steer' needs the entropy .* SkyRL does not .*; train with verl"):
        refused_settings.check(settings(tmp_path))


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
def test_what_would_not_be_the_method_is_refused(tmp_path, setting, said):
    key, value = setting.split("=")
    with pytest.raises(OptionsError, match=said) as caught:
        skyrl.check(settings(tmp_path, **{key: value}))
    assert "\n" not in str(caught.value) and setting in str(caught.value)
    with pytest.raises(OptionsError, match=said):  # of a program that does not check its settings
        trainer_of(CWGRPOTrainer, settings(tmp_path, **{key: value}))


def test_without_records_the_run_may_be_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_RECORD_EVERY", "0")
    monkeypatch.chdir(tmp_path)
    elsewhere = {"trainer.export_path": "s3://bucket/run", "trainer.ckpt_path": "s3://bucket/checkpoints"}
    trainer_of(CWGRPOTrainer, settings(tmp_path, **elsewhere))
    assert list(tmp_path.iterdir()) == []  # no folder "s3:"


def test_a_run_is_not_resumed_under_another_method(tmp_path, monkeypatch):
    train(trainer_of(CWGRPOTrainer, settings(tmp_path)), *rollouts())
    monkeypatch.setenv("CW_GRPO_SCOPE", "batch")
    skyrl.check(settings(tmp_path))  # there is no checkpoint yet
    (tmp_path / "latest_ckpt_global_step.txt").write_text("4")
    for changed in ({}, {"trainer.resume_mode": "none"}):
        with pytest.raises(OptionsError, match=f"{tmp_path} has checkpoints .* scope='group', and this run"):
            skyrl.check(settings(tmp_path, **changed))
    skyrl.check(settings(tmp_path, **{"trainer.ckpt_path": "s3://bucket/run"}))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "global_step_4").symlink_to(tmp_path / "global_step_4")
    elsewhere = {"trainer.resume_mode": "from_path", "trainer.resume_path": tmp_path / "linked" / "global_step_4"}
    with pytest.raises(OptionsError, match=f"{tmp_path} has checkpoints .* scope='group', and this run"):
        trainer_of(CWGRPOTrainer, settings(tmp_path / "elsewhere", **elsewhere))
    # Without resume_mode=from_path, SkyRL does not read the path.
    trainer_of(CWGRPOTrainer, settings(tmp_path / "elsewhere", **elsewhere | {"trainer.resume_mode": "latest"}))
    trainer_of(CWGRPOTrainer, settings(tmp_path / "elsewhere", **{"trainer.resume_mode": "from_path"}))


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
    of_0_3 = SimpleNamespace(policy_loss_type="regular", advantage_batch_normalize=False)
    refused_settings._check_weights_are_kept(SimpleNamespace(trainer=SimpleNamespace(algorithm=of_0_3)))


def test_a_skyrl_of_another_shape_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(RayPPOTrainer, "train_critic_and_policy")
    with pytest.raises(HostError, match=r"there is no .*RayPPOTrainer\.train_critic_and_policy; install skyrl 0"):
        skyrl.check(settings(tmp_path))


def test_the_reward_is_an_environment_of_skyrl_gym():
    rewards.register(model_path=str(MODEL), format_weight=0.5)
    rewards.register()  # a second time, which changes nothing
    row = {"data_source": "mine", "reward_model": {"style": "rule", "ground_truth": "3"}, "max_turns": 1}
    environment = skyrl_gym.make("cw_grpo", env_config={}, extras=row)
    said = environment.step("<think>\n1 + 2\n</think>\n\\boxed{3}")
    assert (said["reward"], said["done"], environment.get_metrics()) == (1.5, True, {"acc": 1.0, "format": 1.0})
    assert skyrl_gym.make("cw_grpo", env_config={}, extras=row).step("\\boxed{4}")["reward"] == 0.0
    for source, reward in (("openai/gsm8k", 1.0), ("knoveleng/open-rs", 0.0)):  # of Open-RS, only LaTeX counts
        row = {"data_source": source, "reward_spec": {"ground_truth": "3"}}  # as SkyRL's own data have it
        assert skyrl_gym.make("cw_grpo", env_config={}, extras=row).step("It is 3.")["reward"] == reward
    with pytest.raises(DataError, match="no reward_model"):
        skyrl_gym.make("cw_grpo", env_config={}, extras={"answer": "3"})


def test_the_program_of_the_reward_reads_the_models_template(monkeypatch):
    """Here without Ray and training, as test_skyrl_training.py runs it."""
    for name in ("ray.get", "skyrl.train.utils.initialize_ray", "skyrl.train.entrypoints.main_base.BasePPOExp"):
        monkeypatch.setattr(name, Mock())
    monkeypatch.setattr("ray.remote", lambda **_: lambda function: SimpleNamespace(remote=function))
    monkeypatch.setattr(rewards, "register", registered := Mock())
    recipe = bash("skyrl/paper.sh", DRY_RUN="1").stdout.splitlines()
    monkeypatch.setattr("sys.argv", ["main", *recipe, f"trainer.policy.model.path={MODEL}"])
    rewards.main()
    registered.assert_called_once_with(model_path=str(MODEL))


def test_skyrl_accepts_the_settings_of_the_recipe():
    cfg = SkyRLTrainConfig.from_cli_overrides(bash("skyrl/paper.sh", DRY_RUN="1").stdout.splitlines())
    validate_cfg(cfg)
    skyrl.check(cfg)
    assert cfg.generator.n_samples_per_prompt == 12
