"""CW-GRPO in Axolotl's real trainers, which derive from TRL's; test_trl_releases.py runs this file.

Its packages are those that these classes import, beside the transformers of the environment.
"""

import pytest

pytest.importorskip("axolotl")

import contextlib
from types import ModuleType
from typing import Any

import torch
from axolotl.core.builders.rl import HFRLTrainerBuilder
from axolotl.core.trainers.grpo.args import AxolotlAsyncGRPOConfig, AxolotlGRPOConfig
from axolotl.core.trainers.grpo.trainer import AxolotlAsyncGRPOTrainer, AxolotlGRPOTrainer
from axolotl.integrations.base import PluginManager
from axolotl.utils.config import prepare_plugins
from axolotl.utils.dict import DictDefault
from interpreter import ROOT
from trl_checks import check_weights, same
from trl_training import BASE, Watched, kept, train

from cw_plugin.errors import HostError, OptionsError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def cw_grpo(monkeypatch) -> ModuleType:
    """The module of the page."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "axolotl"))
    import cw_grpo

    return cw_grpo


PRODUCER = {"use_data_producer": True}


@pytest.fixture
def float32(monkeypatch) -> None:
    """Axolotl's trainer with a data producer computes log-probs in bfloat16, on a CPU, too. The tests compare with
    float32."""
    monkeypatch.setattr(torch, "autocast", lambda **_: contextlib.nullcontext())


def config(tmp_path, settings: dict[str, Any], **changed: Any) -> AxolotlGRPOConfig:
    kind = AxolotlAsyncGRPOConfig if settings else AxolotlGRPOConfig
    return kind(**BASE | changed, output_dir=str(tmp_path), **settings)


def trainer_of(settings: dict[str, Any]) -> type:
    """The class that Axolotl's builder takes for a configuration with the page's line."""
    trl = settings | {"reward_funcs": ["trl_training.reward"]}
    cfg = DictDefault({"rl": "grpo", "plugins": ["cw_grpo.CWGRPOPlugin"], "trl": trl, "context_parallel_size": 1})
    prepare_plugins(cfg)
    builder = HFRLTrainerBuilder(cfg, None, None)
    return builder._get_trainer_cls({})[0]


@pytest.mark.parametrize("settings", [{}, PRODUCER])
def test_with_the_plugin_axolotl_trains_on_the_weights_of_whole_groups(tmp_path, cw_grpo, float32, settings):
    watched = type("WatchedAxolotl", (Watched, trainer_of(settings)), {})
    run = train(tmp_path, watched, {"args": config(tmp_path, settings), "data_collator": list})
    check_weights([kept(run)], 16)
    assert [entry["step"] for entry in run.state.log_history if "cw_grpo/sigma" in entry] == [1, 2]


@pytest.mark.parametrize("settings", [{}, PRODUCER])
def test_weights_none_are_axolotls_trainer_bit_for_bit(tmp_path, monkeypatch, cw_grpo, settings):
    monkeypatch.setenv("CW_GRPO_WEIGHTS", "none")
    theirs = AxolotlAsyncGRPOTrainer if settings else AxolotlGRPOTrainer
    kinds = (trainer_of(settings), theirs)
    assert same(*(train(tmp_path, kind, {"args": config(tmp_path, settings)}) for kind in kinds))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rl": "dpo"}, "rl='dpo' is not supported by CW-GRPO; set it to grpo"),
        ({"trainer_cls": "mine.Trainer"}, "trainer_cls='mine.Trainer' is not supported by CW-GRPO; remove it"),
        ({"context_parallel_size": 2}, "context_parallel_size=2 is not supported by CW-GRPO; remove it"),
        ({"trl": {"async_prefetch": True}}, "trl.async_prefetch=True is not supported by CW-GRPO; remove it"),
        ({"nemo_gym_multi_turn": True}, "nemo_gym_multi_turn=True is not supported by CW-GRPO; remove it"),
    ],
)
def test_the_plugin_refuses_what_computes_advantages_elsewhere(cw_grpo, settings, said):
    manager = PluginManager()
    manager.register("cw_grpo.CWGRPOPlugin", required=True)
    with pytest.raises(OptionsError, match=said):
        manager.plugins["cw_grpo.CWGRPOPlugin"].register({"rl": "grpo"} | settings)


def test_a_trainer_of_another_plugin_is_refused(tmp_path, cw_grpo):
    plain = train(tmp_path, AxolotlGRPOTrainer, {"args": config(tmp_path, {}, max_steps=1)})
    with pytest.raises(HostError, match="another plugin has chosen AxolotlGRPOTrainer, which would train without"):
        cw_grpo.CWGRPOPlugin().post_trainer_create({}, plain)
