"""The comparison that run folders, evaluations and reports share."""

from omegaconf import OmegaConf

from cw_plugin.lab.configs import differences


def test_each_setting_that_differs_is_found_unless_it_is_ignored():
    before = {"data": {"seed": 1, "files": ["a", "b"]}, "trainer": {"logger": ["file"], "log_dir": "/a"}, "lr": 1e-6}
    now = {
        "data": {"files": ["a"]},
        "trainer": {"logger": ["console"], "log_dir": "/b", "logger2": 1},
        "lr": 1e-6,
        "hydra": {"run": {"dir": "x"}},
        "rope": {"theta": 2},
        "adapter": None,  # sets nothing, nor does an empty mapping
        "kwargs": {},
    }
    found = {"data.seed": (1, None), "data.files": (["a", "b"], ["a"])}
    found |= {"trainer.logger2": (None, 1), "rope.theta": (None, 2)}
    for make in (dict, OmegaConf.create):
        assert differences(make(before), make(now), ("trainer.logger", "trainer.*_dir", "hydra")) == found


def test_keys_are_dotted_and_values_as_they_are_written():
    config = OmegaConf.create({"a": "${oc.env:NOT_SET}", "b": "${missing}", "c": {"d": "???", "e": 1}})
    assert differences(config, OmegaConf.to_container(config)) == {}
    overrides = {"a": "${oc.env:NOT_SET}", "b": 1, "c.d": "???", "c": {"e": 2, "f": 3}}
    assert differences(config, overrides) == {"b": ("${missing}", 1), "c.e": (1, 2), "c.f": (None, 3)}
