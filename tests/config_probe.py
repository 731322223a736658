"""Loaded into verl's processes by VERL_USE_EXTERNAL_MODULES: writes down which settings code reads, so that a test
finds the overrides that nobody does. Two kinds of names: a full key of verl's configuration, and Class.field of a
dataclass that verl makes of a section. Copying and checking are not reading.

A test asks :func:`unread` which overrides of a run have neither name."""

import os
import sys
from pathlib import Path
from typing import Any

_COPIERS = ("omegaconf", "hydra", "dataclasses", "copy", "pickle", "cloudpickle", "ray.cloudpickle", "config_probe")
_CHECKERS = ("verl.workers.config", "verl.trainer.config", "verl.utils.config", "cw_plugin.doctor")
_CHECKS = ("__post_init__", "validate", "_validate", "check", "_check")
# Sections that somebody takes as a whole: hydra, Ray, and the reward function as its arguments.
_WHOLE = ("hydra.", "ray_kwargs.", "reward.custom_reward_function.reward_kwargs.")
_written: set[str] = set()


def _write_down(name: str) -> None:
    if name in _written:
        return
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__") == "verl.base_config":  # get() and [...]
        frame = frame.f_back
    reader, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
    checks = reader.startswith(_CHECKERS) and function.startswith(_CHECKS)
    loads = name.startswith("HFModelConfig.")  # whose __post_init__ reads the model's files
    if reader.startswith(_COPIERS) or (checks and not loads):
        return
    _written.add(name)
    folder = Path(os.environ["E2E_PROBE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{os.getpid()}.reads", "a") as file:  # at once: Ray kills its workers
        file.write(f"{name} {reader}.{function}\n")


def unread(run: Path) -> list[str]:
    """Keys of the overrides of a run with this probe, whose values no code of it read."""
    from omegaconf import OmegaConf

    config = OmegaConf.load(run / "hydra" / ".hydra" / "config.yaml")
    lines = [line for file in (run / "probe").glob("*.reads") for line in file.read_text().splitlines()]
    read = {line.split()[0] for line in lines}
    overrides = OmegaConf.load(run / "hydra" / ".hydra" / "overrides.yaml")
    keys = dict.fromkeys(override.partition("=")[0].lstrip("+") for override in overrides)
    return [key for key in keys if not key.startswith(_WHOLE) and not read & {key, _field(config, key)}]


def _field(config: Any, key: str) -> str:
    """Class.field for the deepest section with a class; an entry of a plain dict counts with the field that has it."""
    from omegaconf import OmegaConf

    parts = key.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        if target := OmegaConf.select(config, ".".join([*parts[:depth], "_target_"])):
            return f"{target.rpartition('.')[2]}.{parts[depth]}"
    return key


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
