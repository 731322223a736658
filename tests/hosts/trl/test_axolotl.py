"""CW-GRPO in Axolotl's real trainers, which derive from TRL's; test_trl_releases.py runs this file.

Its packages are those that these classes import, beside the transformers of the environment.
"""

import pytest

pytest.importorskip("axolotl")

from axolotl.core.trainers.grpo.args import AxolotlAsyncGRPOConfig, AxolotlGRPOConfig
from axolotl.core.trainers.grpo.trainer import AxolotlAsyncGRPOTrainer, AxolotlGRPOTrainer
from interpreter import ROOT
from trl_checks import check_weights, same
from trl_training import BASE, Watched, kept, train

from cw_plugin.errors import HostError, OptionsError
from cw_plugin.hosts.trl import CWGRPOTrainer, refused_settings

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]


@pytest.fixture
def trainer(monkeypatch) -> type:
    """The class that the page tells a user to name."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "axolotl"))
    from cw_grpo import AxolotlCWGRPOTrainer

    return AxolotlCWGRPOTrainer


class Asynchronous(CWGRPOTrainer, AxolotlAsyncGRPOTrainer):
    pass


def test_the_class_of_the_page_trains_on_the_weights_of_whole_groups(tmp_path, trainer):
    watched = type("WatchedAxolotl", (Watched, trainer), {})
    args = AxolotlGRPOConfig(**BASE, output_dir=str(tmp_path))
    run = train(tmp_path, watched, {"args": args, "data_collator": list})
    assert run.data_collator is list
    check_weights([kept(run)], 16)


def test_weights_none_are_axolotls_trainer_bit_for_bit(tmp_path, monkeypatch, trainer):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    args = AxolotlGRPOConfig(**BASE, output_dir=str(tmp_path))
    assert same(*(train(tmp_path, kind, {"args": args}) for kind in (trainer, AxolotlGRPOTrainer)))


@pytest.mark.parametrize("setting", ["async_prefetch", "use_data_producer"])
def test_the_asynchronous_trainer_is_refused_before_it_trains(tmp_path, setting):
    args = AxolotlAsyncGRPOConfig(**BASE, output_dir=str(tmp_path), **{setting: True})
    with pytest.raises(OptionsError, match=f"{setting}=True is not supported"):
        train(tmp_path, Asynchronous, {"args": args})


@pytest.mark.parametrize("has_producer", [False, True])
def test_should_it_train_its_first_loss_without_weights_is_refused(tmp_path, monkeypatch, has_producer):
    monkeypatch.setattr(refused_settings, "OF_AXOLOTL", {})
    settings = {"async_prefetch": True, "streaming_partial_batch": True, "use_data_producer": has_producer}
    args = AxolotlAsyncGRPOConfig(**BASE | {"max_steps": 4}, output_dir=str(tmp_path), **settings)
    with pytest.raises(HostError, match="Asynchronous trains on advantages that do not come from"):
        train(tmp_path, Asynchronous, {"args": args})
