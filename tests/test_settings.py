"""The comparison that run folders, evaluations and reports share."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from cw_plugin.settings import differences

BEFORE = {"data": {"seed": 1, "files": ["a", "b"]}, "trainer": {"logger": ["file"], "log_dir": "/a"}, "lr": 1e-6}


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
def test_each_setting_that_differs_is_found_unless_it_is_ignored(now, found):
    for make in (dict, OmegaConf.create):
        assert differences(make(BEFORE), make(now), ("trainer.logger", "trainer.*_dir", "hydra")) == found


def test_keys_are_dotted_and_values_as_they_are_written():
    config = OmegaConf.create({"a": "${oc.env:NOT_SET}", "b": "${missing}", "c": {"d": "???", "e": 1}})
    assert differences(config, OmegaConf.to_container(config)) == {}
    overrides = {"a": "${oc.env:NOT_SET}", "b": 1, "c.d": "???", "c": {"e": 2, "f": 3}}
    assert differences(config, overrides) == {"b": ("${missing}", 1), "c.e": (1, 2), "c.f": (None, 3)}
