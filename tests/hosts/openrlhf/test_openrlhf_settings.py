"""Which arguments and checkpoints of OpenRLHF are refused and allowed.

test_openrlhf_releases.py runs this file under the oldest and the newest release that fit.
"""

import pytest

pytest.importorskip("openrlhf")

import logging
import sys
from argparse import Namespace
from importlib.metadata import version

from interpreter import bash
from openrlhf.trainer.ppo_trainer import BasePPOTrainer
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf_experiences import IN_0_9, experiences, flag, maker_of, parsed, settings

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.hosts.host import OPENRLHF
from cw_plugin.hosts.openrlhf import hook, refused_settings
from cw_plugin.options import Options

pytestmark = pytest.mark.usefixtures("plain")


def test_a_weighting_that_needs_entropies_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "steer")
    with pytest.raises(OptionsError, match=r"'steer' needs the entropy .* OpenRLHF does not .*; train with verl"):
        maker_of(settings(tmp_path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"algo.kl.init_coef": 0.01}, "KL penalty into the reward"),
        ({"algo.advantage.estimator": "gae"}, "no prompt groups"),
        ({"rollout.n_samples_per_prompt": 1}, "one response in a prompt group"),
        ({"actor.policy_loss_type": "gspo"}, "one ratio for a response"),
    ],
)
def test_what_would_not_be_the_method_is_refused_before_training(tmp_path, changed, said):
    with pytest.raises(OptionsError, match=said) as caught:
        maker_of(settings(tmp_path, **changed))
    (argument,) = changed
    assert flag(argument) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("weights", "changed", "said"),
    [
        ("none", {"actor.policy_loss_type": "gspo"}, "the host's own advantages"),
        ("gaussian", {"algo.kl.init_coef": 0.01, "algo.kl.use_loss": True}, "reweighted advantages"),
    ],
)
def test_what_loses_no_weights_is_allowed_and_said_once(tmp_path, monkeypatch, caplog, weights, changed, said):
    logger = logging.getLogger(hook.MAKER)  # which does not propagate
    logger.addHandler(caplog.handler)
    monkeypatch.setenv("CW_GRPO_WEIGHTS", weights)
    maker_of(settings(tmp_path, **changed))
    logger.removeHandler(caplog.handler)
    assert caplog.text.count("cw_grpo") == caplog.text.count(said) == 1


@pytest.mark.parametrize("part", ["MAKER", "TRAINER"])
def test_an_openrlhf_without_its_maker_or_trainer_is_refused(monkeypatch, part):
    monkeypatch.setattr(hook, part, "openrlhf.trainer.gone")
    monkeypatch.setattr(hook.wrapt, "register_post_import_hook", lambda *_: None)  # this process has the hooks
    with pytest.raises(HostError, match=r"there is no openrlhf\.trainer\.gone; install openrlhf 0"):
        hook.install.__wrapped__()


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        (RemoteExperienceMaker, "compute_advantages_and_returns", hook._change_maker),
        (BasePPOTrainer, "train_step", hook._change_trainer),
    ],
)
def test_an_openrlhf_of_another_shape_is_refused(monkeypatch, kind, name, change):
    monkeypatch.setattr(kind, name, lambda self: None)
    with pytest.raises(HostError, match=f"does not fit OpenRLHF .*{name} has no parameter "):
        change(sys.modules[kind.__module__])
    with pytest.raises(HostError, match=r"an argument is missing: .*advantage_estimator"):
        refused_settings.check(Namespace(), Options())


def test_arguments_have_the_names_of_older_releases():
    flags = [each for each in vars(refused_settings).values() if isinstance(each, refused_settings.Flag)]
    assert flags and all(IN_0_9[each.nested] == each.flat for each in flags)


def test_checkpoints_keep_their_method(actor, tmp_path, monkeypatch):
    """tests/test_run.py tests the rule; here, that OpenRLHF's checkpoints are found and the method is written down."""
    maker = maker_of(settings(tmp_path))
    maker.compute_advantages_and_returns(experiences(maker, actor, turns=1))
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    maker_of(settings(tmp_path))  # the first was killed before its first checkpoint
    (tmp_path / "checkpoints" / "_actor").mkdir()
    for resumes in (True, False):
        with pytest.raises(OptionsError, match=r"checkpoints .* weights='gaussian', and this run has weights='none'"):
            maker_of(settings(tmp_path, **{"ckpt.load_enable": resumes}))


@pytest.mark.skipif(version("openrlhf") != OPENRLHF.newest, reason="the recipe is for the newest")
def test_openrlhf_accepts_the_arguments_of_the_recipe():
    args = parsed(*bash("openrlhf/paper.sh", DRY_RUN="1").stdout.splitlines())
    refused_settings.check(args, Options())
    assert args.rollout.n_samples_per_prompt == 12 and args.algo.kl.use_loss is True
