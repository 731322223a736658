"""The comparison that run folders, evaluations and reports share."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from cw_plugin.settings import differences

BEFORE = {"data": {"seed": 1, "files": ["a", "b"]}, "trainer": {"logger": ["file"], "log_dir": "/a"}, "lr": 1e-6}


@pytest.mark.parametrize("make", [dict, OmegaConf.create])
@pytest.mark.parametrize(
    ("now", "found"),
    [
        (BEFORE, {}),
        (BEFORE | {"lr": 2e-6}, {"lr": (1e-6, 2e-6)}),
        (BEFORE | {"data": {"seed": 1, "files": ["a"]}}, {"data.files": (["a", "b"], ["a"])}),
        (BEFORE | {"data": {}}, {"data.seed": (1, None), "data.files": (["a", "b"], None)}),
        (BEFORE | {"rope": {"theta": 2}}, {"rope.theta": (None, 2)}),
        (BEFORE | {"adapter": None, "kwargs": {}}, {}),  # these set nothing
        (BEFORE | {"trainer": {"logger": ["console"], "log_dir": "/b", "logger2": 1}}, {"trainer.logger2": (None, 1)}),
        (BEFORE | {"hydra": {"run": {"dir": "x"}}}, {}),
    ],
)
def test_each_setting_that_differs_is_found_unless_it_is_ignored(make, now, found):
    assert differences(make(BEFORE), make(now), ("trainer.logger", "trainer.*_dir", "hydra")) == found


def test_overrides_of_the_command_line_are_compared_by_their_dotted_keys():
    overrides = {"data.seed": 2, "actor.lora": {"rank": 8, "alpha": 16}}
    config = OmegaConf.create({"data": {"seed": 1}, "actor": {"lora": {"rank": 8}}})
    assert differences(config, overrides) == {"data.seed": (1, 2), "actor.lora.alpha": (None, 16)}


def test_values_that_omegaconf_computes_are_compared_as_they_are_written():
    written = OmegaConf.create({"a": "${oc.env:NOT_SET}", "b": "${missing}", "c": "???"})
    assert differences(written, OmegaConf.to_container(written)) == {}
    assert differences(written, {**OmegaConf.to_container(written), "b": 1}) == {"b": ("${missing}", 1)}
