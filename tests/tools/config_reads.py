"""Writes down which settings verl's code reads, in each of verl's processes, where VERL_USE_EXTERNAL_MODULES loads it.
With :func:`unread`, a test finds the overrides of a run that nothing reads.

verl passes on sections of an OmegaConf configuration, and makes dataclasses of some. Both are watched. Code that copies
or checks a whole section does not count as a reader of its settings.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

COPY = ("omegaconf", "hydra", "dataclasses", "config_reads")
CHECK = ("verl.utils.config", "cw_plugin.lab.doctor")
CHECKS_OF_A_DATACLASS = ("__post_init__", "validate")
LOADS = "verl.workers.config.model"  # whose __post_init__ loads the model with the settings that it has
HANDED_ON = ("hydra.", "model_engine", "ray_kwargs.ray_init.runtime_env.", "transfer_queue.")
HANDED_ON += ("reward.custom_reward_function.reward_kwargs.",)
"""What hydra, Ray, TransferQueue and the reward function get as a whole."""
BEFORE_NAMES = {"HFModelConfig": "actor_rollout_ref.model"}
"""The dataclass that reads its fields when it is made, and its section."""

_written: set[str] = set()


def unread(run: Path) -> list[str]:
    """The overrides of the run in this folder whose values none of its code has read. An entry of a plain dict counts
    with the dict. A value that another setting copies (``${...}``) counts with the copy, too."""
    folder = run / "hydra" / ".hydra"
    read = {key for file in (run / "probe").glob("*.reads") for key in file.read_text().split()}
    copies = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    read |= {source for key, source in _interpolations(copies) if key in read}
    overrides = OmegaConf.load(folder / "overrides.yaml")
    keys = dict.fromkeys(override.partition("=")[0].lstrip("+") for override in overrides)
    return [key for key in keys if not key.startswith(HANDED_ON) and read.isdisjoint(_with_sections(key))]


def _with_sections(key: str) -> set[str]:
    parts = key.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts) + 1)}


def _interpolations(config: Any, key: str = "") -> list[tuple[str, str]]:
    """Pairs of keys: one whose value is an interpolation, and one that it names."""
    if isinstance(config, dict):
        prefix = f"{key}." if key else ""
        return [pair for name, value in config.items() for pair in _interpolations(value, f"{prefix}{name}")]
    return [(key, source) for source in re.findall(r"\$\{(?:oc\.select:)?([\w.]+)", str(config))]


def _write_down(key: str, value: Any) -> None:
    """Unless the value is a section, of which something else will be read."""
    from verl.base_config import BaseConfig

    if key in _written or isinstance(value, DictConfig | BaseConfig):
        return
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__") == "verl.base_config":  # its get() and [...]
        frame = frame.f_back
    reader = str(frame.f_globals.get("__name__"))
    checks = frame.f_code.co_name in CHECKS_OF_A_DATACLASS and reader != LOADS
    if checks or reader.startswith(COPY + CHECK):
        return
    _written.add(key)
    folder = Path(os.environ["E2E_PROBE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{os.getpid()}.reads", "a") as file:  # at once, because Ray kills its workers
        file.write(f"{key}\n")


def _watch_sections() -> None:
    def watch(method: str) -> None:
        original = getattr(DictConfig, method)

        def read(self: DictConfig, key: Any, *default: Any, **named: Any) -> Any:
            value = original(self, key, *default, **named)
            if not str(key).startswith("_"):
                _write_down(self._get_full_key(key), value)
            return value

        setattr(DictConfig, method, read)

    for method in ("__getattr__", "__getitem__", "get", "pop"):
        watch(method)
    select = OmegaConf.select

    def selected(config: Any, key: str, **named: Any) -> Any:
        value = select(config, key, **named)
        _write_down(config._get_full_key(key), value)
        return value

    OmegaConf.select = staticmethod(selected)


def _name_sections(made: Any, config: Any) -> None:
    """Tell a dataclass and those in it where their values come from: two may be of one class."""
    from verl.base_config import BaseConfig

    if isinstance(made, BaseConfig) and isinstance(config, DictConfig):
        object.__setattr__(made, "_key", config._get_full_key(None))
        for name, value in vars(made).items():
            _name_sections(value, config.get(name))


def _watch_dataclasses() -> None:
    from verl import utils
    from verl.base_config import BaseConfig
    from verl.utils import config as of_verl

    convert = of_verl.omega_conf_to_dataclass

    def converted(config: Any, *arguments: Any, **named: Any) -> Any:
        made = convert(config, *arguments, **named)
        if isinstance(config, DictConfig):
            _name_sections(made, config)
        return made

    def read(self: BaseConfig, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if not name.startswith("_"):
            key = vars(self).get("_key") or BEFORE_NAMES.get(type(self).__name__)
            if key:
                _write_down(f"{key}.{name}", value)
        return value

    of_verl.omega_conf_to_dataclass = utils.omega_conf_to_dataclass = converted
    BaseConfig.__getattribute__ = read


if "E2E_PROBE_DIR" in os.environ:
    _watch_sections()
    _watch_dataclasses()
