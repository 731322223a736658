"""Loaded into verl's processes by VERL_USE_EXTERNAL_MODULES: writes down which settings code reads, so that a test
finds the overrides that nobody does. Two kinds of names: a full key of verl's configuration, and Class.field of a
dataclass that verl makes of a section. Copying and checking of whole sections is not reading."""

import os
import sys
from pathlib import Path
from typing import Any

_COPIERS = ("omegaconf", "hydra", "dataclasses", "copy", "pickle", "cloudpickle", "ray.cloudpickle", "config_probe")
_CHECKERS = ("verl.workers.config", "verl.trainer.config", "verl.utils.config", "cw_plugin.doctor")
_written: set[str] = set()


def _write_down(name: str) -> None:
    if name in _written:
        return
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__") == "verl.base_config":  # get() and [...]
        frame = frame.f_back
    reader = str(frame.f_globals.get("__name__"))
    if reader.startswith(_COPIERS + _CHECKERS):
        return
    _written.add(name)
    folder = Path(os.environ["E2E_PROBE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{os.getpid()}.reads", "a") as file:  # at once: Ray kills its workers
        file.write(f"{name} {reader}\n")


def _watch_dataclasses() -> None:
    from verl.base_config import BaseConfig

    def read(self: Any, name: str) -> Any:
        if not name.startswith("_"):
            _write_down(f"{type(self).__name__}.{name}")
        return object.__getattribute__(self, name)

    BaseConfig.__getattribute__ = read  # type: ignore[method-assign]


def _watch_omegaconf() -> None:
    from omegaconf import DictConfig, OmegaConf

    def watch(method: str) -> None:
        original = getattr(DictConfig, method)

        def read(self: Any, key: Any, *rest: Any, **named: Any) -> Any:
            if not str(key).startswith("_"):
                _write_down(self._get_full_key(key))
            return original(self, key, *rest, **named)

        setattr(DictConfig, method, read)

    for method in ("__getattr__", "__getitem__", "get"):
        watch(method)
    select = OmegaConf.select

    def recorded_select(config: Any, key: str, **named: Any) -> Any:
        _write_down(config._get_full_key(key))
        return select(config, key, **named)

    OmegaConf.select = staticmethod(recorded_select)  # type: ignore[assignment]


if os.environ.get("E2E_PROBE_DIR"):
    _watch_dataclasses()
    _watch_omegaconf()
