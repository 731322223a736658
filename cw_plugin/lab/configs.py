"""Reads configurations, and says what differs between two of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from cw_plugin.errors import first_line
from cw_plugin.lab.errors import DataError

Config = Mapping[Any, Any]  # a dict, or a configuration of OmegaConf; nested, or flat already


def flat(config: Config, ignored: Iterable[str] = ()) -> dict[str, Any]:
    """Flatten a configuration: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``.

    Args:
        config: the configuration. Interpolations of OmegaConf stay as they are written.
        ignored: patterns of keys to leave out, such as ``trainer.*_dir``. A pattern also covers what is below its keys.
    """
    patterns = [pattern for name in ignored for pattern in (name, f"{name}.*")]
    values = dict(_dotted(config))
    return {key: values[key] for key in values if not any(fnmatchcase(key, pattern) for pattern in patterns)}


def _dotted(config: Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(config, dict):
        from omegaconf import OmegaConf  # those who compare plain dicts, such as TRL's, may lack it

        config = cast("Config", OmegaConf.to_container(config, resolve=False))  # a list is no Config
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def listed(value: Any) -> list[Any]:
    """A setting that is one text or a list of them, as a list; empty for None."""
    return [value] if isinstance(value, str) else list(value or [])


def differences(before: Config, now: Config, ignored: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """Compare two configurations, but for ``ignored``, as :func:`flat` takes them. A missing setting equals None.

    Returns:
        Dotted key -> (value before, value now) of each setting that differs.
    """
    old, new = flat(before, ignored), flat(now, ignored)
    keys = dict.fromkeys([*old, *new])
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def read_yaml(file: Path) -> dict[str, Any]:
    """Read settings by dotted keys; a file that is damaged, or holds something else, is a DataError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        config = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({first_line(error)}); remove it, or restore it") from None
    if not isinstance(config, dict):
        raise DataError(f"{file} is a {type(config).__name__}, not a mapping of settings; remove it, or restore it")
    return flat(config)
